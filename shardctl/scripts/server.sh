# shardctl's server: a PostgreSQL server on its own host, as a move runs it. It needs nothing of
# shardctl's: a POSIX shell, coreutils, setsid, and /proc.
#
#   look     prints pid, port and status of the server of the data directory; nothing if none runs
#   unused   prints so where the data directory has not even a pid file
#   prepare  waits for the end of one that stops, and prints the size of its log
#   make_log makes the log, for a user who may not
#   start    starts it, which goes on whatever becomes of who has started it, and waits until it
#            has a pid file or has ended
#   await    waits until it takes connections, then prints what `look` does
#   gone     waits until the last process of a server that stops has ended
#
# And what only a sandbox does:
#   state    prints the version of the data, whether the sandbox made it, and what `look` does
#   initdb   makes the data directory, whole or not at all
#   remove   removes what the sandbox made, and prints the names of that

ENDED=73 PLACE=74 FOREIGN=75

# A number may be another's by now, so it is of a server that is in this very directory. Of a
# process of another session's only the command line can be read.
serves() { # pid
    { read -r name <"/proc/$1/comm"; } 2>/dev/null || return 1
    case $name in
    postgres | postmaster) ;;
    *) return 1 ;;
    esac
    if [ -e "/proc/$1/cwd" ]; then # by the shell itself: it is asked of every server there is
        [ "/proc/$1/cwd" -ef "$data" ]
    else
        tr '\0' '\n' 2>/dev/null <"/proc/$1/cmdline" | grep -Fqx -e "$data" -e "$(readlink -f -- "$data")"
    fi
}

look() {
    # A FIFO would have this wait for ever.
    [ -f "$data/postmaster.pid" ] && [ -r "$data/postmaster.pid" ] || return 0
    # pid, port and status; of a server without clients, as initdb's, the first is negative
    # shellcheck disable=SC2046
    set -- $(sed -n '1p;4p;8p' "$data/postmaster.pid")
    case ${1-} in
    '' | *[!0-9-]*) return 0 ;;
    esac
    ! serves "${1#-}" || printf '%s\n' "${1#-}" "${2-}" "${3-}"
}

processes() {
    for process in /proc/[0-9]*; do
        ! serves "${process#/proc/}" || echo "${process#/proc/}"
    done
}

gone() { # seconds
    until=$(($(uptime) + $1))
    while [ -n "$(processes)" ] && [ "$(uptime)" -lt "$until" ]; do
        sleep 0.02
    done
}

unused() {
    # What is in a directory that may not be entered looks as if it were missing.
    [ -e "$data/postmaster.pid" ] || { [ -e "$data" ] && [ ! -x "$data" ]; } || echo unused
}

prepare() {
    case $(look) in
    *stopping*) gone 20 ;;
    esac
    # Its number may be another process's by now. Beside processes of its own postgres does not start.
    [ -n "$(look)$(processes)" ] || rm -f -- "$data/postmaster.pid" || exit "$PLACE"
    if [ -e "$log" ]; then wc -c <"$log"; else echo 0; fi
}

make_log() { # user, or nothing for oneself
    [ ! -e "$log" ] || return 0
    # Not what a link leads to.
    (umask 077 && set -C && : >"$log") || exit "$PLACE"
    [ -z "$1" ] || chown -h -- "$1:" "$log" || exit "$PLACE"
}

# Not by pg_ctl, which has a shell read the names of the program, the directory and the log.
start() { # postgres
    # Passwords come from a passfile: what is only in today's environment is lost tomorrow.
    unset PGPASSWORD PGSERVICE PGOPTIONS PGTARGETSESSIONATTRS
    export PGDATA="$data" # as pg_ctl has it: an archive_command may use it
    cd / || exit "$PLACE"
    setsid "$1" -D "$data" </dev/null >>"$log" 2>&1 &
    until [ -n "$(look)" ]; do
        kill -0 "$!" 2>/dev/null || exit "$ENDED"
        sleep 0.02
    done
}

await() { # seconds
    until=$(($(uptime) + $1))
    while
        seen=$(look)
        # shellcheck disable=SC2086 # three words, or two while it starts
        set -- $seen
        case ${3-} in
        ready | standby) false ;;
        *) [ -n "$seen" ] && [ "$(uptime)" -lt "$until" ] ;;
        esac
    do
        sleep 0.02
    done
    printf '%s\n' "$seen"
}

state() {
    [ ! -d "$data" ] || [ -x "$data" ] || refuse "$PLACE" "$data: cannot be entered (permissions)"
    version='' ours=''
    [ ! -f "$data/PG_VERSION" ] || [ ! -r "$data/PG_VERSION" ] || read -r version <"$data/PG_VERSION"
    [ ! -e "$data/$MARKER" ] || ours=yes
    printf '%s\n' "$version" "$ours"
    look
}

# What a killed one left has the marker; nothing else that happens to have its name is touched.
# stdin: rules for clients instead of initdb's, if there are any
initdb() { # program, superuser, file with the password or nothing, text of the marker or nothing
    [ ! -e "$new/$MARKER" ] || rm -rf -- "$new/data" "$new" || exit "$PLACE"
    for one in "$new" "$data"; do
        [ ! -e "$one" ] || rmdir -- "$one" 2>/dev/null || refuse "$FOREIGN" "$one: $(ls -A -- "$one" 2>&1)"
    done
    mkdir -- "$new" && : >"$new/$MARKER" || exit "$PLACE"
    trap 'rm -rf -- "$new/data" "$new"' EXIT
    set -- "$1" "$4" --no-sync --auth=trust -E UTF8 -U "$2" ${3:+"--pwfile=$3"} -D "$new/data"
    program=$1 marker=$2
    shift 2
    # Not every system has the first.
    "$program" --locale=C.UTF-8 "$@" || "$program" --locale=C "$@" || exit
    rules=$(cat)
    [ -z "$rules" ] || printf '%s\n' "$rules" >"$new/data/pg_hba.conf" || exit "$PLACE"
    [ -z "$marker" ] || printf '%s\n' "$marker" >"$new/data/$MARKER" || exit "$PLACE"
    mv -T -- "$new/data" "$data" || exit "$PLACE"
}

# The marker goes last, so that one that was killed can be repeated. Of a link, only the link goes.
remove() {
    if [ -e "$data" ] && [ ! -e "$data/$MARKER" ]; then
        refuse "$FOREIGN" "\`sandbox up\` did not create it: it has no $MARKER"
    fi
    [ -z "$(look)" ] || refuse "$FOREIGN" "a server has just started in it"
    if [ ! -e "$data" ] && [ ! -L "$data" ] && [ ! -e "$new" ]; then
        [ -s "$log" ] || rm -f -- "$log" # only the lock of an `up` that failed
        exit
    fi
    [ ! -e "$new/$MARKER" ] || rm -rf -- "$new/data" "$new" || exit "$PLACE"
    [ ! -e "$data" ] || find "$data" -mindepth 1 -maxdepth 1 ! -name "$MARKER" -exec rm -rf -- {} +
    for one in "$data" "$log"; do
        [ -e "$one" ] || [ -L "$one" ] || continue
        rm -rf -- "$one" && printf '%s\n' "$one" || exit "$PLACE"
    done
}

MARKER=shardctl.sandbox
part=$1 data=$2 log=$3 new=$2.new
shift 3
"$part" "$@"
