# shardctl's look at a data directory: its contents, what it is in, and room on its disk. It
# needs a POSIX shell and coreutils.

export LC_ALL=C

# What is in a directory that may not be entered looks as if it were missing.
find_seen() { # path
    seen=$1
    until [ -e "$seen" ] || [ -L "$seen" ]; do seen=$(dirname -- "$seen"); done
    if [ -d "$seen" ] && [ ! -x "$seen" ]; then kind=closed
    elif [ "$seen" != "$1" ]; then kind=absent
    elif [ ! -d "$1" ]; then kind=file
    elif [ ! -r "$1" ]; then kind=closed
    elif [ -e "$1/PG_VERSION" ]; then kind=server
    elif [ -n "$(ls -A -- "$1")" ]; then kind=other
    else kind=empty
    fi
}

of_node() { # path
    version=
    find_seen "$1"
    [ ! -r "$1/PG_VERSION" ] || read -r version < "$1/PG_VERSION"
    printf '%s\n' "$kind" "$seen" "$version" "$(stat -c %U -- "$seen")" "$(id -un)"
    [ "$kind" != other ] || ls -A -- "$1"
}

# A clone takes the name of the directory when it is whole: neither a link nor a mount point
# gives it away.
of_clone() { # path, end of the name of a clone's working directory
    leftover=
    find_seen "$1"
    case $kind in
    absent | closed) ;;
    *)
        if [ -L "$1" ]; then kind=link
        elif [ -d "$1" ] && [ "$(stat -c %d "$1")" != "$(stat -c %d "$1/..")" ]; then kind=mount
        fi
        ;;
    esac
    [ "$kind" != server ] || kind=other
    [ ! -e "$1$2" ] || leftover=yes
    printf '%s\n' "$kind" "$leftover" "$seen" "$(df -P -k -- "$seen" | tail -n 1)"
    [ "$kind" != other ] || ls -A -- "$1"
}

"$@"
