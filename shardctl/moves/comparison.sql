-- name: tables
-- Tables with rows of their own in these schemas, the largest first: blocks, columns, and for each
-- how it is compared. As text OIDs of objects are names, which differ between the copies
WITH RECURSIVE {held}, referring (oid) AS (
    SELECT oid FROM pg_type
    WHERE typnamespace = 'pg_catalog'::regnamespace AND typtype = 'b' AND typname LIKE 'reg%'
    UNION
    SELECT h.outside FROM referring AS r JOIN held AS h ON h.inside = r.oid
)
SELECT n.nspname::text, c.relname::text,
       pg_relation_size(c.oid) / current_setting('block_size')::bigint,
       coalesce(array_agg(a.attname::text ORDER BY a.attnum) FILTER (WHERE a.attnum IS NOT NULL), '{{}}'),
       coalesce(array_agg(CASE WHEN r.oid IS NOT NULL THEN 'sent'
                               WHEN a.atttypid = 'bytea'::regtype THEN 'bytes'
                               -- A cast to text would take its trailing blanks away.
                               WHEN a.atttypid = 'bpchar'::regtype THEN 'output'
                               WHEN y.typnamespace = 'pg_catalog'::regnamespace THEN 'text'
                               ELSE 'output' END ORDER BY a.attnum)
                FILTER (WHERE a.attnum IS NOT NULL), '{{}}')
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_catalog.pg_type AS y ON y.oid = a.atttypid
LEFT JOIN referring AS r ON r.oid = a.atttypid
WHERE n.nspname IN ({schemas})
  AND (c.relkind = 'r' OR c.relkind = 'm' AND c.relispopulated)
GROUP BY n.nspname, c.oid, c.relname
ORDER BY pg_relation_size(c.oid) DESC, 1, 2

-- name: pin
-- What the text of a row depends on, beside what every session has; no row may be hidden by a
-- policy, and no lock waited for long
SELECT set_config('TimeZone', 'UTC', false), set_config('lc_monetary', 'C', false),
       set_config('row_security', 'off', false), set_config('lock_timeout', %(lock_timeout)s, false),
       -- A view that takes a table's place meanwhile would run its owner's code.
       (SELECT set_config(name, 'view', false) FROM pg_settings
        WHERE name = 'restrict_nonsystem_relation_kind')

-- name: see
-- Let a transaction see what was there at the cutover
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY;
SET TRANSACTION SNAPSHOT {snapshot}

-- name: sums
-- How many rows a table itself has, and a sum of them that no order changes
SELECT count(*), coalesce(sum({hash}), 0)::text,
       pg_relation_filenode({file}::regclass)::bigint
FROM ONLY {schema}.{table} AS t {part}

-- name: row
-- Part of others: a row's number, from its columns' hashes: its text need not fit into 1 GB
hash_array_extended(ARRAY[{columns}]::bigint[], 0)

-- name: text
-- Part of others: the hash of a column; of another collation what differs might count as equal
hashtextextended((t.{column})::text COLLATE "C", 0)

-- name: output
-- Part of others: the same of a type that its owner, an application, may have given a cast to text
hashtextextended((ROW(t.{column}))::text COLLATE "C", 0)

-- name: bytes
-- Part of others: the same of bytes, whose text is twice as long
hashtextextended((sha256(t.{column}))::text COLLATE "C", 0)

-- name: sent
-- Part of others: the same where OIDs of objects are within, as the numbers that are stored
hashtextextended((sha256(record_send(ROW(t.{column}))))::text COLLATE "C", 0)

-- name: probe
-- Whether servers of two versions make the same numbers: PostgreSQL does not promise that
SELECT hash_array_extended(
    ARRAY(SELECT hashtextextended(repeat('probe', n) COLLATE "C", 0) FROM generate_series(1, 64) AS n), 0)

-- name: key
-- The columns of a table's primary key
SELECT a.attname::text
FROM pg_index AS i
JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
WHERE i.indrelid = {table}::regclass AND i.indisprimary
ORDER BY a.attnum

-- name: groups
-- Sums of a table's rows in groups of keys
SELECT {key_hash} & {mask}, count(*), sum({row_hash})::text
FROM ONLY {schema}.{table} AS t
GROUP BY 1

-- name: rows
-- The keys of some of these groups, and a sum of each row
SELECT ({key})::text, {row_hash}
FROM ONLY {schema}.{table} AS t
WHERE {key_hash} & {mask} = ANY ({groups}::bigint[])

-- name: sequences
-- Read how far the sequences are, as the decision does
SELECT count(CASE WHEN c.relkind <> 'S' THEN 0
                  WHEN has_sequence_privilege(c.oid, 'USAGE, SELECT')
                  THEN pg_sequence_last_value(c.oid) END)
FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname IN ({schemas}) AND c.relkind = 'S'
