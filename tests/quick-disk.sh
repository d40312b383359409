#!/usr/bin/env bash
# Name the directory for the data of tests: in memory where there is plenty of that. Servers are
# made and removed here by the hundred, and whenever ext4 makes a file it looks through all inodes
# that were deleted within the last seconds.
set -euo pipefail

needed_kib=$((8 * 1024 * 1024))
memory=/dev/shm
read -r kind free < <(df -k --output=fstype,avail "$memory" 2>/dev/null | tail -n 1) || true
available=$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo 2>/dev/null || true)
if [[ ${kind:-} == tmpfs && -w $memory && ${free:-0} -ge $needed_kib && ${available:-0} -ge $needed_kib ]]; then
    echo "$memory"
else
    echo "${TMPDIR:-/tmp}"
fi
