-- name: source
-- Its data directory, max_slot_wal_keep_size in MB
SELECT (SELECT setting FROM pg_settings WHERE name = 'data_directory'),
       (SELECT setting FROM pg_settings WHERE name = 'max_slot_wal_keep_size')::bigint

-- name: behind
-- Bytes of WAL that a slot holds back, bytes that its target has not confirmed, and whether its WAL
-- is still there; no row when it is missing
SELECT coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn), 0)::bigint,
       coalesce(greatest(pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn), 0), 0)::bigint,
       wal_status IS DISTINCT FROM 'lost'
FROM pg_replication_slots WHERE slot_name = %(slot)s

-- name: held
-- Bytes of WAL that a slot holds back; no row when it is missing
SELECT coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn), 0)::bigint
FROM pg_replication_slots WHERE slot_name = %(slot)s
