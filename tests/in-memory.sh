#!/usr/bin/env bash
# Run a command with its temporary directory in memory, where there is plenty of that. Tests make
# and remove servers by the hundred, and whenever ext4 makes a file it looks through all inodes
# that were deleted within the last minutes.
set -euo pipefail

needed_kib=$((8 * 1024 * 1024))
memory=/dev/shm
available=$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo 2>/dev/null || true)
if [ "${available:-0}" -lt $needed_kib ]; then
    exec "$@"
fi
read -r kind free < <(df -k --output=fstype,avail "$memory" 2>/dev/null | tail -n 1) || true
if [[ ${kind:-} == tmpfs && -w $memory && ${free:-0} -ge $needed_kib ]]; then
    TMPDIR=$memory exec "$@"
fi
# A container's is often small: root can have another, which goes when the command has ended.
mount="mount -t tmpfs -o mode=1777,size=${needed_kib}k none $memory"
if [ "$(id -u)" -eq 0 ] && [ -d "$memory" ] && unshare --mount $mount 2>/dev/null; then
    TMPDIR=$memory exec unshare --mount sh -c "$mount && exec \"\$@\"" sh "$@"
fi
exec "$@"
