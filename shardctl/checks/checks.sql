-- name: server
-- The server; its start distinguishes it from every other server
SELECT current_setting('server_version_num')::integer, current_setting('server_version'),
       pg_is_in_recovery(), pg_postmaster_start_time()

-- name: public
-- Whether every role may log in to this database
SELECT has_database_privilege('public', current_database(), 'CONNECT')

-- name: unsafe_settings
-- Parameters with which data is lost: name, value, the right one, and what happens
SELECT s.name, s.setting, CASE s.setting WHEN 'on' THEN 'off' ELSE 'on' END, u.harm
FROM pg_settings AS s JOIN (VALUES
    ('fsync', 'off', 'after a crash the server''s data is lost'),
    ('full_page_writes', 'off', 'a crash can corrupt pages'),
    ('autovacuum', 'off', 'tables bloat, and transaction ids run out'),
    ('track_counts', 'off', 'autovacuum finds no tables to vacuum'),
    ('zero_damaged_pages', 'on', 'damaged pages are zeroed silently'),
    ('ignore_checksum_failure', 'on', 'damaged pages are read as if they were valid')
) AS u (name, setting, harm) USING (name, setting)
ORDER BY s.name

-- name: prepared
-- Prepared transactions of this database, and their ages in s
SELECT gid, extract(epoch FROM clock_timestamp() - prepared)::bigint
FROM pg_prepared_xacts WHERE database = current_database()

-- name: may_read_secrets
-- Whether this role may read the secrets by which roles log in
SELECT has_column_privilege('pg_catalog.pg_authid', 'rolname', 'SELECT')
       AND has_column_privilege('pg_catalog.pg_authid', 'rolpassword', 'SELECT')

-- name: secrets
-- Digests of the SCRAM secrets of these roles, none for secrets of another kind
SELECT rolname::text,
       CASE WHEN starts_with(rolpassword, 'SCRAM-SHA-256$')
            THEN encode(sha256(convert_to(rolpassword, 'UTF8')), 'hex') END
FROM pg_catalog.pg_authid WHERE rolname = ANY (%(roles)s::name[])

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

-- name: odd_id
-- An id that a shard's generator cannot have made by now
{id} >= {limit} OR (({id} >> {sequence_bits}) & {sign_and_shard}) <> {shard}

-- name: odd_key
-- A key of another shard
{belongs} <> {shard}

-- name: no_key
-- A key of no shard
{key} IS NOT NULL AND {belongs} IS NULL

-- name: judged_rows
-- The odd rows of a part of a table by what is odd about them: whose shard they are of, and which
SELECT code, CASE code WHEN 'other_shard' THEN made ELSE belongs END,
       array_agg(CASE WHEN code IN ('other_key', 'no_key') THEN key ELSE id END)
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
GROUP BY 1, 2
ORDER BY 1, 2

-- name: present_ids
-- Which of these ids a table holds
SELECT {id} FROM ONLY {table} WHERE {id} = ANY ({wanted})
