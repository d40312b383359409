-- name: held
-- Bytes of WAL that these slots hold back; no row for one that is missing or has lost its WAL
SELECT slot_name::text, coalesce(pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery()
                                                      THEN pg_last_wal_replay_lsn()
                                                      ELSE pg_current_wal_lsn() END, restart_lsn), 0)::bigint
FROM pg_replication_slots
WHERE slot_name = ANY (%(slots)s::name[]) AND wal_status IS DISTINCT FROM 'lost'

-- name: clock
-- The time on this server's clock
SELECT clock_timestamp()

-- name: note
-- Add to the report of a move
UPDATE shardctl.move
SET revision = revision + 1, report = coalesce(report, '{}') || %(report)s::jsonb
WHERE id = %(move)s
