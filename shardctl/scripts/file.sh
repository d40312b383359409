# shardctl's file: reads and replaces a file of a host. It needs a POSIX shell and coreutils.

ABSENT=66 # EX_NOINPUT of sysexits.h

# What is in a directory that may not be entered looks as if it were missing.
is_there() { # path
    seen=$1
    until [ -e "$seen" ]; do seen=$(dirname -- "$seen"); done
    if [ -d "$seen" ] && [ ! -x "$seen" ]; then
        echo "$seen: cannot be entered (permissions)" >&2
        exit 1
    fi
    [ "$seen" = "$1" ]
}

# From a FIFO nothing would come, from a device no end.
require_regular() { # path
    [ -f "$1" ] || { echo "$1: is not a regular file" >&2; exit 1; }
}

follow() { # path, which may be a link
    if ! target=$(readlink -f -- "$1"); then
        [ ! -L "$1" ] || { echo "$1: a broken symbolic link" >&2; exit 1; }
        target=$1
    fi
}

# In base64, for what comes back as text has lost its carriage returns.
content() { # path, bytes of the largest file
    is_there "$1" || exit "$ABSENT"
    require_regular "$1"
    size=$(wc -c < "$1") || exit 1
    [ "$size" -le "$2" ] || { echo "$1: is larger than $2 bytes" >&2; exit 1; }
    exec base64 -- "$1"
}

# Beside the file, whole and on the disk, before it takes the file's place; an error leaves the
# old one as it is. Mode and owner stay; of a link, what it leads to is replaced. Whatever feeds
# the pipe may be killed, which looks like the end of the text: hence the count of its bytes.
write() { # path, bytes, ends of the names of new and old file, file with mode and owner
    set -eu
    umask g-w,o-w
    follow "$1"
    new=$target$3 old=$target$4 model=${5:-$target}
    trap 'rm -f -- "$new"' EXIT
    rm -f -- "$new"
    if [ -e "$model" ]; then cp -p -- "$model" "$new"; fi
    dd of="$new" conv=fsync status=none
    [ "$(wc -c < "$new")" -eq "$2" ] || { echo "$1: the text arrived incomplete" >&2; exit 1; }
    if [ -e "$target" ]; then
        # A file of another user's may not be linked to.
        ln -f -- "$target" "$old" 2> /dev/null || cp -p -- "$target" "$old"
    fi
    mv -f -- "$new" "$target"
    sync "$(dirname -- "$target")"
}

remove() { # path
    exec rm -f -- "$1"
}

# Machine, device and inode of its directory, and its name without links.
place() { # path
    follow "$1"
    folder=$(dirname -- "$target")
    [ -d "$folder" ] || { echo "$folder: no such directory" >&2; exit 1; }
    [ -w "$folder" ] && [ -x "$folder" ] || { echo "$folder: cannot be written to (permissions)" >&2; exit 1; }
    [ ! -e "$target" ] || [ -f "$target" ] || { echo "$target: is not a regular file" >&2; exit 1; }
    IFS= read -r machine < /proc/sys/kernel/random/boot_id || machine=$(uname -n)
    printf '%s %s\n%s' "$machine" "$(stat -L -c %d:%i -- "$folder")" "$target"
}

name() { # path
    readlink -f -- "$1" || printf '%s' "$1"
}

size() { # path
    is_there "$1" || { echo 0; exit; }
    require_regular "$1"
    [ -r "$1" ] || { echo "$1: cannot be read (permissions)" >&2; exit 1; }
    exec wc -c < "$1"
}

"$@"
