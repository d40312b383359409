# shardctl's look at a data directory: what is there, and what it is in. It needs a POSIX shell
# and coreutils.

export LC_ALL=C

dir=$1 seen=$1 leftover= # $2: what the name of a clone's working directory has at its end
# What is in a directory that may not be entered looks as if it were missing.
until [ -e "$seen" ] || [ -L "$seen" ]; do seen=$(dirname -- "$seen"); done
if [ -d "$seen" ] && [ ! -x "$seen" ]; then kind=closed
elif [ "$seen" != "$dir" ]; then kind=absent
elif [ -L "$dir" ]; then kind=link
elif [ ! -d "$dir" ]; then kind=file
elif [ ! -r "$dir" ]; then kind=closed
elif [ "$(stat -c %d "$dir")" != "$(stat -c %d "$dir/..")" ]; then kind=mount
elif [ -e "$dir/PG_VERSION" ]; then kind=server
elif [ -n "$(ls -A "$dir")" ]; then kind=other
else kind=empty
fi
[ ! -e "$dir$2" ] || leftover=yes
printf '%s\n' "$kind" "$leftover" "$seen" "$(df -P -k "$seen" | tail -n 1)"
[ "$kind" != other ] || ls -A "$dir"
