-- name: expected
-- Physical standbys that stream from here: those without a slot by name and address, and the names
-- of physical slots, used or not. Clones of moves are nobody's to promote but theirs
SELECT coalesce(s.slot_name::text, r.application_name || ' ' || coalesce(r.client_addr::text, ''))
FROM pg_stat_replication AS r
LEFT JOIN pg_replication_slots AS s ON s.active_pid = r.pid
WHERE coalesce(s.slot_type, 'physical') = 'physical' AND r.state IN ('streaming', 'catchup')
  AND r.application_name NOT IN ('pg_basebackup', 'pg_receivewal')
  AND r.application_name NOT LIKE 'shardctl\_%'
UNION
SELECT slot_name::text FROM pg_replication_slots
WHERE slot_type = 'physical' AND NOT temporary AND restart_lsn IS NOT NULL
  AND slot_name NOT LIKE 'shardctl\_%'
UNION
-- From 17 on, the operator may say which slots those are; one that is dropped or lost is away
SELECT btrim(named, ' "')
FROM regexp_split_to_table(current_setting('synchronized_standby_slots', true), ',') AS named
WHERE btrim(named, ' "') <> ''
ORDER BY 1

-- name: connected
-- What tells whether others may have come since: sooner planned than `expected`
SELECT pg_catalog.concat_ws(';',
    (SELECT pg_catalog.string_agg(r.pid || coalesce(r.state, ''), ',' ORDER BY r.pid)
     FROM pg_catalog.pg_stat_get_wal_senders() AS r),
    (SELECT pg_catalog.string_agg(
        pg_catalog.concat_ws(' ', s.slot_name, s.active_pid, s.temporary, s.restart_lsn IS NULL),
        ',' ORDER BY s.slot_name)
     FROM pg_catalog.pg_get_replication_slots() AS s WHERE s.slot_type = 'physical'),
    pg_catalog.current_setting('synchronized_standby_slots', true))

-- name: flushed
-- The same, as far as they are connected and have flushed the WAL up to a position
SELECT coalesce(s.slot_name::text, r.application_name || ' ' || coalesce(r.client_addr::text, ''))
FROM pg_stat_replication AS r
LEFT JOIN pg_replication_slots AS s ON s.active_pid = r.pid
WHERE coalesce(s.slot_type, 'physical') = 'physical' AND r.flush_lsn >= %(lsn)s::pg_lsn

-- name: position
-- Up to where the WAL is on the disk
SELECT pg_current_wal_flush_lsn()::text

-- name: timeline
-- The timeline that this server writes
SELECT left(pg_walfile_name(pg_current_wal_lsn()), 8)
