# shardctl's look at directories with PostgreSQL's programs: a line for each, with its name, its
# name without links, what it lacks, and its version. It needs a POSIX shell and coreutils.

IFS=:
needed=$1 # programs, the first of which tells the version
first=${1%%:*}
shift

see() { # directory
    real=$(readlink -f -- "$1")
    lacking=
    [ -d "$1" ] || lacking=directory
    for program in $needed; do
        [ -f "$1/$program" ] && [ -x "$1/$program" ] || lacking="$lacking $program"
    done
    said=
    [ -n "$lacking" ] || said=$("$1/$first" --version 2>/dev/null)
    printf '%s\t%s\t%s\t%s\n' "$1" "$real" "$lacking" "$said"
}

of_patterns_and_path() { # patterns
    for pattern; do
        for directory in $pattern; do
            [ ! -d "$directory" ] || see "$directory"
        done
    done
    for directory in $PATH; do
        [ -x "$directory/$first" ] || continue
        see "$directory"
        see "$(dirname -- "$(readlink -f -- "$directory/$first")")"
    done
}

named() { # directories
    for directory; do see "$directory"; done
}

"$@"
