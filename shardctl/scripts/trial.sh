# shardctl's trial: a server as the clone will be one, without data, beside the data directory. It
# needs nothing of shardctl's: a POSIX shell, coreutils, setsid and flock (util-linux), and /proc.
#
#   make    makes its directory for the user who runs the server
#   try     makes and starts the server, and stops and removes it after `over`; prints empty lines
#           until then, so that it notices when they are not read any more
#   ready   prints a line if the server of that `try` is ready
#   over    ends it if it is ready, and leaves nothing behind if it has ended
#   unmake  removes the directory where the server's user may not
#
# The server ends with the process that asked for it, whatever ended that.

umask 077

MARK=shardctl.trial

make() { # user, or nothing for oneself
    mkdir -- "$new" 2>/dev/null || return 0
    [ -z "$1" ] || chown -h -- "$1:" "$new"
}

unmake() {
    rmdir -- "$new" 2>/dev/null || :
}

ready() {
    [ ! -e "$new/ready.$trial" ] || echo ready
}

over() {
    rm -f -- "$new/ready.$trial"
}

# stdin: what `hold` reads
try() { # words of `hold`
    exec 3<&0
    # `script` is this one, as who runs it has read it. A group of its own survives this one's end.
    setsid sh -c "$script" trial hold "$new" "$data" "$trial" "$$" "$@" <&3 3<&- &
    exec 3<&-
    while kill -0 "$!" 2>/dev/null; do
        echo 2>/dev/null || exit
        sleep 0.05
    done
    wait "$!"
}

# One that has ended may stay as a zombie, but has no children any more.
is_asked() {
    read -r _ _ _ parent _ <"/proc/$$/stat" && [ "$parent" = "$asked" ]
}

empty() {
    rm -rf -- "$new/data" "$new/log" "$new"/ready.* && rm -f -- "$new/$MARK"
}

end() {
    # Again, for a server that has just begun ignores it.
    while [ -n "$postgres" ] && kill -QUIT "$postgres" 2>/dev/null; do
        sleep 0.05
    done
    empty && unmake
}

# stdin: the stored form of the superuser's password or an empty line, then a line for each file,
# with its name and, in base64, its content
hold() { # process that waits, directory of the programs, superuser, words for postgres
    asked=$1 bin=$2 user=$3 postgres=
    shift 3
    trap '' HUP PIPE
    cd / || exit
    # The server inherits the lock: it is free when the last process has ended.
    if [ -r "$base" ]; then
        exec 9<"$base"
        flock -w 60 9 || refuse 1 "another shardctl tries a server there"
    fi
    [ -d "$new" ] || mkdir -- "$new" || exit
    # What a trial left that was killed with its host has the mark.
    [ -e "$new/$MARK" ] || [ -z "$(ls -A -- "$new")" ] || refuse 1 "$new is not empty"
    empty && : >"$new/$MARK" || exit
    trap end EXIT
    [ ! -e "$data.clone" ] && [ -z "$(ls -A -- "$data" 2>/dev/null)" ] ||
        refuse 1 "$data is not empty any more"

    read -r secret
    start=$(printf -- '-c %s\n' "$@")
    set -- --no-instructions --no-sync --auth=trust --locale=C -E UTF8 -U "$user" -D "$new/data"
    # The shell itself prints the secret, so that it is in no process list.
    if [ -n "$secret" ]; then
        printf '%s\n' "$secret" | "$bin/initdb" "$@" --pwfile=/dev/stdin >/dev/null || exit
    else
        "$bin/initdb" "$@" </dev/null >/dev/null || exit
    fi
    while read -r name text; do
        printf '%s' "$text" | base64 -d >"$new/data/$name" || exit
    done

    unset PGPASSWORD PGSERVICE PGOPTIONS PGTARGETSESSIONATTRS
    # shellcheck disable=SC2086 # words without blanks
    "$bin/postgres" -D "$new/data" $start </dev/null >"$new/log" 2>&1 &
    postgres=$!
    until grep -q '^ready' "$new/data/postmaster.pid" 2>/dev/null; do
        is_asked || exit
        kill -0 "$postgres" 2>/dev/null || refuse 1 "$(tail -n 12 -- "$new/log")"
        sleep 0.02
    done
    : >"$new/ready.$trial"
    while [ -e "$new/ready.$trial" ] && is_asked; do
        sleep 0.02
    done
}

part=$1 new=$2 data=$3 trial=$4 base=${2%/*}
shift 4
"$part" "$@"
