# shardctl's slot: takes a replication slot from a server that does not run, and cannot start, for
# the WAL which that slot kept has filled its disk. A POSIX shell, coreutils, sed, and two programs
# of PostgreSQL.
#
#   list  prints the names of the server's replication slots
#   drop  removes one, there or not; and if there is none left, the WAL that recovery and the
#         archiver can do without

export LC_ALL=C

list() {
    for slot in "$data"/pg_replslot/*; do
        [ ! -d "$slot" ] || printf '%s\n' "${slot##*/}"
    done
}

drop() { # slot, pg_controldata, pg_archivecleanup
    rm -rf -- "$data/pg_replslot/$1" || exit 1
    [ -z "$(list)" ] || return 0 # of the WAL that others need no name is known here
    redo=$("$2" -D "$data" | sed -n "s/^Latest checkpoint's REDO WAL file: *//p")
    [ -n "$redo" ] || exit 1
    oldest=$(
        for file in "$data"/pg_wal/archive_status/*.ready; do
            name=${file##*/}
            printf '%s\n' "${name%.ready}"
        done | sed -n '/^[0-9A-F]\{24\}$/p' | sort | head -n 1
    )
    # Of two segments the older one comes first.
    keep=$(printf '%s\n' "$redo" ${oldest:+"$oldest"} | sort | head -n 1)
    "$3" "$data/pg_wal" "$keep"
}

part=$1 data=$2
shift 2
"$part" "$@"
