# shardctl's look at a data directory: its contents, what it is in, and room on its disk. It
# needs a POSIX shell and coreutils.

find_kind() { # path
    if ! find_seen "$1"; then kind=closed
    elif [ "$seen" != "$1" ]; then kind=absent
    elif [ ! -d "$1" ]; then kind=file
    elif [ ! -r "$1" ]; then kind=closed
    elif [ -n "$(ls -A -- "$1")" ]; then kind=other
    else kind=empty
    fi
}

# A clone takes the name of the directory when it is whole: neither a link nor a mount point
# gives it away.
of_clone() { # path, end of the name of a clone's working directory
    leftover=
    find_kind "$1"
    case $kind in
    absent | closed) ;;
    *)
        if [ -L "$1" ]; then kind=link
        elif [ -d "$1" ] && [ "$(stat -c %d "$1")" != "$(stat -c %d "$1/..")" ]; then kind=mount
        fi
        ;;
    esac
    [ ! -e "$1$2" ] || leftover=yes
    printf '%s\n' "$kind" "$leftover" "$seen" "$(stat -f -c '%S %b %a' -- "$seen")"
    [ "$kind" != other ] || ls -A -- "$1"
}

"$@"
