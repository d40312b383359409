# shardctl's question to a server's own program whether it takes parameters, which come by standard
# input as a postgresql.conf: prints `taken`, or `refused` and why; nothing where it cannot be asked.
# It starts no server. It needs a POSIX shell and coreutils.

export LC_ALL=C
umask 077

# By a file, and not by `-c`, which `ps` shows to everybody.
directory=$(mktemp -d) || exit 0
trap 'rm -rf -- "$directory"' EXIT
trap 'exit 1' HUP INT TERM
cat >"$directory/postgresql.conf" || exit 0

if said=$("$1" -D "$directory" -C server_version 2>&1 >/dev/null); then
    echo taken
else
    printf 'refused\n%s\n' "$said"
fi
