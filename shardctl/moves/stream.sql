-- name: put
-- Put a mark into a move's rows of this node; the stream of the move carries those of its source
INSERT INTO shardctl.stream (move, attempt, what, note)
VALUES (%(move)s, %(attempt)s, %(what)s, %(note)s)
ON CONFLICT (move, attempt, what) DO UPDATE SET at = clock_timestamp(), note = excluded.note

-- name: seen
-- Whether a mark is here
SELECT EXISTS (SELECT FROM shardctl.stream
               WHERE move = %(move)s AND attempt = %(attempt)s AND what = %(what)s)

-- name: last
-- The note of the last mark of a kind
SELECT note FROM shardctl.stream WHERE move = %(move)s AND what = %(what)s
ORDER BY attempt DESC LIMIT 1

-- name: unclaimed
-- Hold a move's record on its target, and return whether the target has not claimed: a claim waits for it
SELECT true FROM shardctl.move WHERE id = %(move)s AND NOT state = ANY (%(claimed)s) FOR UPDATE

-- name: forget
-- Remove the marks of a move, or those of a kind
DELETE FROM shardctl.stream WHERE move = %(move)s AND what = coalesce(%(what)s, what)

-- name: await
-- Wait a while for the fence's mark. Then put the target's own with a synchronous commit, if this is
-- the server that has the copy, and its subscription the one that has followed since then, and hold
-- what can be seen after it
BEGIN;
DO $await$
DECLARE
    until timestamptz := pg_catalog.clock_timestamp() + {seconds} * interval '1 second';
BEGIN
    WHILE NOT EXISTS (SELECT FROM shardctl.stream
                      WHERE move = {move} AND attempt = {attempt} AND what = {fence})
          AND pg_catalog.clock_timestamp() < until
    LOOP
        PERFORM pg_catalog.pg_sleep(0.001);
    END LOOP;
END
$await$;
INSERT INTO shardctl.stream (move, attempt, what)
SELECT f.move, f.attempt, {arrived}
FROM shardctl.stream AS f
JOIN shardctl.stream AS c ON c.move = f.move AND c.what = {copied}
JOIN shardctl.stream AS o ON o.move = f.move AND o.what = {subscribed}
JOIN pg_catalog.pg_subscription AS s
  ON s.oid = (o.note->>'oid')::oid AND s.subname = {subscription}
WHERE f.move = {move} AND f.attempt = {attempt} AND f.what = {fence}
  AND c.note->>'timeline' = pg_catalog.left(
      pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8)
ON CONFLICT (move, attempt, what) DO UPDATE SET at = pg_catalog.clock_timestamp()
RETURNING true;
COMMIT;
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
SELECT pg_catalog.pg_export_snapshot()

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

-- name: files
-- The file of each table of some schemas: a TRUNCATE gives it another
SELECT coalesce(jsonb_object_agg(n.nspname || '.' || c.relname, pg_relation_filenode(c.oid)), '{}')
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = ANY (%(schemas)s::name[]) AND c.relkind = 'r'

-- name: migrations
-- Which migrations ran in the moved shards
SELECT array_agg(m::text) FROM shardctl.migration AS m WHERE shard = ANY (%(shards)s)

-- name: forget_migrations
-- Nothing ran in shards that are not here
DELETE FROM shardctl.migration WHERE shard = ANY (%(shards)s)

-- name: note_migrations
-- The same on the target
INSERT INTO shardctl.migration SELECT (one::shardctl.migration).* FROM unnest(%(rows)s::text[]) AS one

-- name: owned
-- Moved shards that the target's map gives to the target
SELECT shard FROM shardctl.map WHERE node = %(target)s AND shard = ANY (%(shards)s)
