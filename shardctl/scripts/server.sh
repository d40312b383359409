# shardctl's server: a PostgreSQL server on its own host, as a move runs it. It needs nothing of
# shardctl's: a POSIX shell, coreutils, setsid, and /proc.
#
#   look     prints pid, port and status of the server of the data directory; nothing if none runs
#   unused   prints so where the data directory has not even a pid file
#   prepare  sees that one could be started, and prints the size of its log
#   make_log makes the log, for a user who may not
#   start    starts it, which goes on whatever becomes of who has started it, and waits until it
#            takes connections or has ended, or the time is over
#   await    waits until it takes connections, then prints what `look` does

export LC_ALL=C

MAJOR=71 ORPHANS=72 ENDED=73 PLACE=74

refuse() { # code, reason
    printf '%s\n' "$2" >&2
    exit "$1"
}

# A number may be another's by now, so it is of a server that is in this very directory. Of a
# process of another session's only the command line can be read.
serves() { # pid
    [ -e /proc/self ] || { kill -0 "$1" 2>/dev/null; return; }
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
    pid='' port='' status=''
    [ -r "$data/postmaster.pid" ] || return 0
    {
        read -r pid
        read -r _
        read -r _
        read -r port
        read -r _
        read -r _
        read -r _
        read -r status
    } <"$data/postmaster.pid"
    pid=${pid#-} # of a server without clients, as initdb's, it is negative
    case $pid in
    '' | *[!0-9]*) return 0 ;;
    esac
    ! serves "$pid" || printf '%s\n' "$pid" "$port" "$status"
}

unused() {
    # What is in a directory that may not be entered looks as if it were missing.
    [ -e "$data/postmaster.pid" ] || { [ -e "$data" ] && [ ! -x "$data" ]; } || echo unused
}

prepare() { # major
    found=
    [ ! -r "$data/PG_VERSION" ] || read -r found <"$data/PG_VERSION"
    [ "$found" = "$1" ] || refuse "$MAJOR" "$found"
    if [ -z "$(look)" ]; then
        left=
        for process in /proc/[0-9]*; do
            ! serves "${process#/proc/}" || left="$left ${process#/proc/}"
        done
        # Beside them a second server would ruin the data.
        [ -z "$left" ] || refuse "$ORPHANS" "$left"
        rm -f -- "$data/postmaster.pid" || exit "$PLACE"
    fi
    size
}

size() {
    if [ -e "$log" ]; then wc -c <"$log"; else echo 0; fi
}

make_log() { # user, or nothing for oneself
    [ ! -e "$log" ] || return 0
    # Not what a link leads to.
    (umask 077 && set -C && : >"$log") || exit "$PLACE"
    [ -z "$1" ] || chown -h -- "$1:" "$log" || exit "$PLACE"
}

# Not by pg_ctl, which has a shell read the names of the program, the directory and the log.
start() { # postgres, seconds
    # Passwords come from a passfile: what is only in today's environment is lost tomorrow.
    unset PGPASSWORD PGSERVICE PGOPTIONS PGTARGETSESSIONATTRS
    export PGDATA="$data" # as pg_ctl has it: an archive_command may use it
    cd / || exit "$PLACE"
    setsid "$1" -D "$data" </dev/null >>"$log" 2>&1 &
    postgres=$! until=$(($(uptime) + $2))
    while [ "$(uptime)" -lt "$until" ]; do
        # shellcheck disable=SC2046 # three words, or less while it starts
        set -- $(look)
        case "${1-} ${3-}" in
        "$postgres ready" | "$postgres standby") exit ;;
        esac
        kill -0 "$postgres" 2>/dev/null || exit "$ENDED"
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

uptime() { # seconds that no correction of the clock changes
    read -r now _ </proc/uptime && echo "${now%.*}"
}

part=$1 data=$2 log=$3
shift 3
"$part" "$@"
