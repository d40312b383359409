# shardctl's clone: the directories of a node that is being cloned. It needs nothing of
# shardctl's: a POSIX shell, coreutils, util-linux, and /proc.
#
#   data              the data directory; what has its name is whole
#   data.clone        where the copying program works: move (whose it is), pid, log, data, and its
#                     state, as the name of a file: running -> done | failed. Renaming needs no
#                     room on a full disk.
#   data.clone.MOVE   what is being made or deleted; no other program looks at it
#   data/shardctl.clone
#                     the mark of a move's clone: move, and the files that open it up

umask 077

FOREIGN=71 OTHER=72 SERVES=73 PLACE=74

require_ours() { # file with the move's id
    found=
    [ -r "$1" ] || refuse "$PLACE" "$1: cannot be read"
    read -r found <"$1"
    [ "$found" = "$move" ] || refuse "$OTHER" "$found"
}

## look: prints absent, copying, copied, broken, made or opened

look() {
    if [ -d "$mark" ]; then
        require_ours "$mark/move"
        if [ -e "$mark/pg_hba.conf" ]; then echo made; else echo opened; fi
        return
    fi
    [ ! -L "$data" ] || refuse "$PLACE" "$data: is a symbolic link"
    if [ -e "$data" ]; then
        holds=$(ls -A "$data") || exit "$PLACE"
        [ -z "$holds" ] || refuse "$FOREIGN" "$holds"
    fi
    if [ ! -d "$work" ]; then
        echo absent
        return
    fi
    require_ours "$work/move"
    if [ -n "$(processes_in "$work")" ]; then # asked before the files: one that ends meanwhile has left its word there
        echo copying
    elif [ -e "$work/done" ] && [ -d "$work/data" ]; then
        echo copied
    else
        echo broken
    fi
}

## begin: makes data.clone for the user who runs the server

begin() { # user, or nothing for oneself
    (umask 022 && mkdir -p -- "$parent") || exit "$PLACE"
    # Renamed onto a mount point at the end, the copy would have been for nothing.
    if mountpoint -q -- "$data"; then
        refuse "$PLACE" "$data: is a mount point; use a directory below it"
    fi
    rm -rf -- "$own" || exit "$PLACE"
    mkdir -- "$own" || exit "$PLACE"
    printf '%s\n' "$move" >"$own/move" || exit "$PLACE"
    : >"$own/running" || exit "$PLACE"
    [ -e "$data.log" ] || : >"$own/log-is-new" || exit "$PLACE"
    [ -z "$1" ] || chown -R -h -- "$1:" "$own" || exit "$PLACE"
    mv -T -- "$own" "$work" || exit "$PLACE"
    # A trial that saw nothing here yet ends within seconds, and holds this lock until then.
    flock -w 60 "$parent" true || :
}

## copy: starts the program, which goes on whatever becomes of who has started it

copy() { # program and arguments
    cd "$work" || exit "$PLACE"
    # Passwords come from a passfile: what is only in today's environment is lost tomorrow.
    unset PGPASSWORD PGSERVICE PGOPTIONS PGTARGETSESSIONATTRS
    # shellcheck disable=SC2016
    setsid sh -c 'echo $$ >pid || exit
        if "$@"; then mv running done; else mv running failed; fi' clone "$@" \
        </dev/null >log 2>&1 &
    until [ -s pid ]; do
        kill -0 $! 2>/dev/null || refuse "$PLACE" "the copy did not start: $(tail -n 3 log)"
        sleep 0.01
    done
}

said() {
    tail -n 50 -- "$work/log" || exit "$PLACE"
}

## fill: puts files into the copy, the mark's last

# stdin: a line for each file, with its name and, in base64, what it holds
fill() {
    cd "$work/data" || exit "$PLACE"
    rm -rf shardctl.clone || exit "$PLACE" # the source may have been a clone itself
    mkdir shardctl.clone || exit "$PLACE"
    [ ! -e "$work/log-is-new" ] || : >shardctl.clone/log-is-new || exit "$PLACE"
    while read -r name text; do
        rm -f -- "$name" || exit "$PLACE"
        printf '%s' "$text" | base64 -d >"$name" || exit "$PLACE"
        sync "$name" || exit "$PLACE"
    done
    sync shardctl.clone . || exit "$PLACE"
}

## place: lets the copy take the data directory's name

place() {
    require_ours "$work/data/shardctl.clone/move"
    mv -T -- "$work/data" "$data" || exit "$PLACE"
    sync "$parent"
    sweep
}

## discard: ends what runs and deletes data.clone

discard() {
    [ ! -d "$work" ] || require_ours "$work/move"
    end_processes_in "$work" || refuse "$PLACE" "$work: its processes do not end: $alive"
    sweep
}

# Its name goes first, so that one that is killed half-way leaves nothing that looks like more.
sweep() {
    rm -rf -- "$own" || exit "$PLACE"
    [ ! -d "$work" ] || mv -T -- "$work" "$own" || exit "$PLACE"
    rm -rf -- "$own" || exit "$PLACE"
}

## admit: adds rules to those of a clone that is not opened; prints a line if there are new ones

# stdin: rules for shardctl. They go to the end of the file and replace nothing: whoever has just
# claimed may put the node's own in its place at this moment.
admit() {
    [ -e "$mark/pg_hba.conf" ] || return 0
    require_ours "$mark/move"
    new=$(grep -Fvx -f "$data/pg_hba.conf") || return 0
    printf '\n%s\n' "$new" >>"$data/pg_hba.conf" || exit "$PLACE"
    sync "$data/pg_hba.conf"
    echo new
}

## remove: deletes the data directory of a stopped clone that was not promoted

require_standby() {
    require_ours "$mark/move"
    [ -e "$mark/pg_hba.conf" ] || refuse "$SERVES" "was opened up"
    [ -e "$data/standby.signal" ] || refuse "$SERVES" "was promoted"
}

remove() {
    require_standby
    new_log=
    [ ! -e "$mark/log-is-new" ] || new_log=yes
    rm -rf -- "$own" || exit "$PLACE"
    mv -T -- "$data" "$own" || exit "$PLACE"
    rm -rf -- "$own" || exit "$PLACE"
    [ -z "$new_log" ] || rm -f -- "$data.log"
}

## open: puts the node's own files into force, as far as that is not done; keep: ends the mark

# The rules for clients last: `look` knows its state by them. Clients wait in the meantime.
open() {
    cd "$mark" || exit "$PLACE"
    require_ours move
    set --
    for file in postgresql.auto.conf pg_hba.conf; do
        [ ! -e "$file" ] || set -- "$@" "$file"
    done
    [ $# -eq 0 ] || mv -f -- "$@" .. || exit "$PLACE"
}

keep() {
    [ -d "$mark" ] || return 0
    require_ours "$mark/move"
    [ ! -e "$mark/pg_hba.conf" ] || refuse "$PLACE" "$data: was not opened up"
    rm -rf -- "$mark" && sync "$data" || exit "$PLACE"
}

part=$1 data=$2 move=$3
shift 3
parent=${data%/*} work=$data.clone own=$data.clone.$move mark=$data/shardctl.clone
"$part" "$@"
