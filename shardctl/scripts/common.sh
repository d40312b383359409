# What shardctl's other scripts have in common: it goes before each of them.

export LC_ALL=C

refuse() { # code, reason
    printf '%s\n' "$2" >&2
    exit "$1"
}

uptime() { # seconds that no correction of the clock changes
    read -r now _ </proc/uptime && echo "${now%.*}"
}

# What is in a directory that may not be entered looks as if it were missing.
find_seen() { # path
    seen=$1
    until [ -e "$seen" ] || [ -L "$seen" ]; do seen=$(dirname -- "$seen"); done
    [ ! -d "$seen" ] || [ -x "$seen" ]
}

# Processes of the session whose leader is in the file `pid` of a directory, and that are in there:
# a number alone may be another's by now.
processes_in() { # directory
    inside=$1
    [ -s "$inside/pid" ] && read -r leader <"$inside/pid" || return 0
    for process in /proc/[0-9]*; do
        [ "$process/cwd" -ef "$inside" ] || continue
        { read -r stat <"$process/stat"; } 2>/dev/null || continue
        # pid (name) state parent group session
        # shellcheck disable=SC2086
        set -- ${stat##*) }
        [ "$4" != "$leader" ] || echo "${process#/proc/}"
    done
}

end_processes_in() { # directory
    tries=0
    while
        alive=$(processes_in "$1")
        [ -n "$alive" ]
    do
        # shellcheck disable=SC2086
        kill -KILL $alive 2>/dev/null
        tries=$((tries + 1))
        [ "$tries" -lt 250 ] || return 1
        sleep 0.02
    done
}
