# shardctl's look for libraries that a server loads: prints where the server's own are, then each
# of those named that is missing; nothing where its own cannot be found. It needs a POSIX shell.

bin=$1 path=$2
shift 2

# Where a server's libraries are, is asked of pg_config, which not every host has; every server
# has the library by which standbys follow.
libdir=
for directory in "$("$bin/pg_config" --pkglibdir 2>/dev/null)" "$bin/../lib" \
    "$bin/../lib/postgresql" "$bin/../lib64"; do
    [ -z "$libdir" ] && [ -e "$directory/libpqwalreceiver.so" ] || continue
    libdir=$directory
done
[ -n "$libdir" ] || exit 0
printf '%s\n' "$libdir"

is_there() { # file, perhaps without its suffix
    case $1 in '$libdir'*) set -- "$libdir${1#?libdir}" ;; esac
    [ -e "$1" ] || [ -e "$1.so" ]
}

is_on_path() { # name
    for directory in $path; do
        ! is_there "$directory/$1" || return 0
    done
    return 1
}

set -f
IFS=:
for name; do
    case $name in
    */*) is_there "$name" ;;
    *) is_on_path "$name" ;;
    esac || printf '%s\n' "$name"
done
