-- name: server
-- The server's major version, and whether it is a standby
SELECT current_setting('server_version_num')::integer / 10000, pg_is_in_recovery()

-- name: unlogged
-- The schemas in which one of these sequences starts again after a crash
SELECT DISTINCT n.nspname::text
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relname = ANY (%s) AND c.relkind = 'S' AND c.relpersistence = 'u'

-- name: public
-- That every role may log in to this database, as a finding
SELECT 'public_connects', current_database()::text,
       jsonb_build_object('database', quote_ident(current_database()))
WHERE has_database_privilege('public', current_database(), 'CONNECT')

-- name: unsafe_settings
-- Parameters with which data is lost, as findings
SELECT 'unsafe', s.name, jsonb_build_object(
    'value', s.setting, 'right', CASE s.setting WHEN 'on' THEN 'off' ELSE 'on' END, 'harm', u.harm)
FROM pg_settings AS s JOIN (VALUES
    ('fsync', 'off', 'after a crash the server''s data is lost'),
    ('full_page_writes', 'off', 'a crash can corrupt pages'),
    ('autovacuum', 'off', 'tables bloat, and transaction ids run out'),
    ('track_counts', 'off', 'autovacuum finds no tables to vacuum'),
    ('zero_damaged_pages', 'on', 'damaged pages are zeroed silently'),
    ('ignore_checksum_failure', 'on', 'damaged pages are read as if they were valid')
) AS u (name, setting, harm) USING (name, setting)
ORDER BY s.name

-- name: leftovers
-- Slots of no move and without a client, and prepared transactions of this database, as findings
SELECT 'slot_inactive', slot_name::text, jsonb_build_object('kind', slot_type, 'held',
           coalesce(pg_size_pretty(pg_wal_lsn_diff(wal.at, restart_lsn)) || ' of WAL', 'no WAL'))
FROM pg_replication_slots, (SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
                                        ELSE pg_current_wal_lsn() END AS at) AS wal
WHERE NOT active AND slot_name !~ '^shardctl_[0-9a-f]{8}'
UNION ALL
SELECT 'prepared_transaction', gid,
       jsonb_build_object('age', date_trunc('second', clock_timestamp() - prepared))
FROM pg_prepared_xacts WHERE database = current_database()

-- name: blocks
-- How many blocks these tables have; of one that is being altered, what was known: its size waits
SELECT n.nspname::text, c.relname::text,
       CASE WHEN c.oid = ANY (ARRAY(SELECT l.relation FROM pg_locks AS l
                                    WHERE l.mode = 'AccessExclusiveLock' AND l.relation IS NOT NULL))
            THEN c.relpages
            ELSE pg_relation_size(c.oid) / current_setting('block_size')::bigint END
FROM unnest(%(schemas)s::text[], %(names)s::text[]) AS t (schema, name)
JOIN pg_namespace AS n ON n.nspname = t.schema
JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relname = t.name

-- name: open_scan
-- Begin to read a table; locked first, as the snapshot of a moment before a rewrite would see no rows
LOCK TABLE ONLY {table} IN ACCESS SHARE MODE;
DECLARE scan NO SCROLL CURSOR FOR
SELECT t.ctid, CASE WHEN {odd} THEN set_config('shardctl.odd', 'on', true) END FROM ONLY {table} AS t;
FETCH scan

-- name: scan_step
-- Read some rows, then whether one was odd since the last step, then where the next row is
MOVE {rows} IN scan;
SELECT current_setting('shardctl.odd', true) = 'on', set_config('shardctl.odd', '', true);
FETCH scan

-- name: by_key
-- Part of others: the shard that a row's key belongs to
shardctl.shard_of({column})

-- name: by_id
-- Part of others: the shard that an id was made for; none where no shard has that number
CASE WHEN {column} BETWEEN 0 AND {highest} AND shardctl.id_shard({column}) < {count} THEN shardctl.id_shard({column}) END

-- name: moment
-- The node's clock, in Unix milliseconds
SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint

-- name: id_tables
-- Tables whose primary key is a bigint made by next_id(), and whether a session alters them
SELECT n.nspname::text, c.relname::text, a.attname::text,
       c.oid = ANY (ARRAY(SELECT l.relation FROM pg_locks AS l
                          WHERE l.mode = 'AccessExclusiveLock' AND l.relation IS NOT NULL))
FROM pg_namespace AS n
JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relkind = 'r'
JOIN pg_index AS i ON i.indrelid = c.oid AND i.indisprimary AND i.indnkeyatts = 1
JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = i.indkey[0]
                      AND a.atttypid = 'int8'::regtype
JOIN pg_attrdef AS d ON d.adrelid = c.oid AND d.adnum = a.attnum
WHERE n.nspname = ANY (%(schemas)s)
  -- The call itself, however the default's text is written.
  AND EXISTS (SELECT FROM pg_depend AS u JOIN pg_proc AS p ON p.oid = u.refobjid
              WHERE u.classid = 'pg_attrdef'::regclass AND u.objid = d.oid
                AND u.refclassid = 'pg_proc'::regclass AND p.proname = %(next_id)s)
ORDER BY c.oid

-- name: ends
-- The oldest and the newest id of one table, each from an end of the primary key's index
SELECT {number}, min({id}), max({id}) FROM ONLY {table}

-- name: odd_row
-- A row that its shard's generator cannot have made by now, or whose key is of another shard or of none
{id} >= {limit} OR (({id} >> {sequence_bits}) & {sign_and_shard}) <> {shard}
OR ({key} IS NOT NULL AND {belongs} IS DISTINCT FROM {shard})

-- name: judged_rows
-- The odd rows of a part of a table by what is odd about them: how many, one, and whose shard it is of
SELECT code, count(*), (array_agg(CASE WHEN code IN ('other_key', 'no_key') THEN key ELSE id END))[1],
       (array_agg(CASE code WHEN 'other_shard' THEN made ELSE belongs END))[1]
FROM (
    SELECT id, key, made, belongs,
           -- One fault a row: a misplaced row's key is elsewhere with it.
           CASE WHEN id < 0 THEN 'not_generated' WHEN made <> {shard} THEN 'other_shard'
                WHEN id >= {limit} THEN 'not_generated' WHEN belongs <> {shard} THEN 'other_key'
                WHEN key IS NOT NULL AND belongs IS NULL THEN 'no_key' END AS code
    FROM (
        SELECT {id} AS id, {key} AS key, ({id} >> {sequence_bits}) & {max_shard} AS made,
               {belongs} AS belongs
        FROM ONLY {table} AS t {part}
    ) AS each
) AS judged
WHERE code IS NOT NULL
GROUP BY 1
ORDER BY 1
