# shardctl's file: reads and replaces a file of a host. It needs a POSIX shell and coreutils.

ABSENT=66 # EX_NOINPUT of sysexits.h

is_there() { # path
    find_seen "$1" || refuse 1 "$seen: cannot be entered (permissions)"
    [ -e "$1" ]
}

# From a FIFO nothing would come, from a device no end.
require_regular() { # path
    [ -f "$1" ] || refuse 1 "$1: is not a regular file"
}

follow() { # path, which may be a link
    if ! target=$(readlink -f -- "$1"); then
        [ ! -L "$1" ] || refuse 1 "$1: a broken symbolic link"
        target=$1
    fi
}

# In base64, for what comes back as text has lost its carriage returns.
content() { # path, bytes of the largest file
    is_there "$1" || exit "$ABSENT"
    require_regular "$1"
    size=$(wc -c < "$1") || exit 1
    [ "$size" -le "$2" ] || refuse 1 "$1: is larger than $2 bytes"
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
    [ "$(wc -c < "$new")" -eq "$2" ] || refuse 1 "$1: the text arrived incomplete"
    if [ -e "$target" ]; then
        # A file of another user's may not be linked to.
        ln -f -- "$target" "$old" 2> /dev/null || cp -p -- "$target" "$old"
    fi
    mv -f -- "$new" "$target"
    sync "$(dirname -- "$target")"
}

# Machine, device and inode of its directory, and its name without links.
place() { # path
    follow "$1"
    folder=$(dirname -- "$target")
    [ -d "$folder" ] || refuse 1 "$folder: no such directory"
    [ -w "$folder" ] && [ -x "$folder" ] || refuse 1 "$folder: cannot be written to (permissions)"
    [ ! -e "$target" ] || [ -f "$target" ] || refuse 1 "$target: is not a regular file"
    IFS= read -r machine < /proc/sys/kernel/random/boot_id || machine=$(uname -n)
    printf '%s %s\n%s' "$machine" "$(stat -L -c %d:%i -- "$folder")" "$target"
}

size() { # path
    is_there "$1" || { echo 0; exit; }
    require_regular "$1"
    [ -r "$1" ] || refuse 1 "$1: cannot be read (permissions)"
    exec wc -c < "$1"
}

"$@"
