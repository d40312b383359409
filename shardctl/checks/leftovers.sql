-- name: slots
-- Slots without a client, of any database, and those of moves, with the WAL that they hold back
SELECT slot_name::text, slot_type, active,
       pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
                            ELSE pg_current_wal_lsn() END,
                       restart_lsn)::bigint
FROM pg_replication_slots
WHERE NOT active OR slot_name ~ '^shardctl_[0-9a-f]{8}$'
ORDER BY slot_name

-- name: prepared
-- Prepared transactions of this database, and their age in seconds
SELECT gid, extract(epoch FROM clock_timestamp() - prepared)::bigint
FROM pg_prepared_xacts
WHERE database = current_database()
ORDER BY prepared

-- name: idle
-- Sessions of this database that are idle in a transaction, the longest first; never queries
SELECT pid, application_name, extract(epoch FROM clock_timestamp() - state_change)::bigint
FROM pg_stat_activity
WHERE datname = current_database()
  AND state IN ('idle in transaction', 'idle in transaction (aborted)')
  AND clock_timestamp() - state_change >= make_interval(secs => %(seconds)s)
ORDER BY state_change
