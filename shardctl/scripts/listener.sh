# shardctl's look for the program that listens on a port, given in hexadecimal: prints its name
# and process, `?` where /proc does not show it, for it names sockets to their own user and to root,
# and nothing where none listens. Not every host has `ss`. It needs a POSIX shell, awk and find.

for inode in $(cat /proc/net/tcp /proc/net/tcp6 2>/dev/null |
    awk -v port="$1" '$4 == "0A" && $2 ~ ":" port "$" { print $10 }'); do
    for link in $(find /proc/[0-9]*/fd -lname "socket:\[$inode\]" 2>/dev/null); do
        pid=${link#/proc/} pid=${pid%%/*}
        { read -r name < "/proc/$pid/comm"; } 2>/dev/null || continue
        printf '%s (pid %s)\n' "$name" "$pid"
        exit
    done
    nameless='?'
done
[ -z "${nameless-}" ] || echo "$nameless"
