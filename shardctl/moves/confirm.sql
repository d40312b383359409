-- name: tables
-- Tables with rows of their own in these schemas, the largest first: blocks and columns
SELECT n.nspname::text, c.relname::text,
       pg_relation_size(c.oid) / current_setting('block_size')::bigint,
       coalesce(array_agg(a.attname::text ORDER BY a.attnum) FILTER (WHERE a.attnum IS NOT NULL), '{{}}'),
       -- These are written as names, which a shard's own tables have changed on one side.
       coalesce(array_agg(CASE
           WHEN t.typnamespace = 'pg_catalog'::regnamespace AND t.typname LIKE 'reg%' THEN 'oid'
           WHEN t.typnamespace = 'pg_catalog'::regnamespace AND t.typname LIKE '\_reg%' THEN '_oid'
           END ORDER BY a.attnum) FILTER (WHERE a.attnum IS NOT NULL), '{{}}')
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_catalog.pg_type AS t ON t.oid = a.atttypid
WHERE n.nspname IN ({schemas})
  AND (c.relkind = 'r' OR c.relkind = 'm' AND c.relispopulated)
GROUP BY n.nspname, c.oid, c.relname
ORDER BY pg_relation_size(c.oid) DESC, 1, 2

-- name: pin
-- What the text of a row depends on; no row may be hidden by a policy, and no lock waited for long
SELECT set_config('DateStyle', 'ISO, YMD', false), set_config('TimeZone', 'UTC', false),
       set_config('IntervalStyle', 'postgres', false), set_config('extra_float_digits', '1', false),
       set_config('bytea_output', 'hex', false), set_config('lc_monetary', 'C', false),
       set_config('row_security', 'off', false), set_config('lock_timeout', %(lock_timeout)s, false)

-- name: begin
-- Begin a transaction that sees what was there at the cutover
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
SET TRANSACTION SNAPSHOT {snapshot}

-- name: sums
-- How many rows a table itself has, and a sum of them that no order changes
SELECT count(*), coalesce(sum(hashtextextended(({row})::text, 0)), 0)::text,
       pg_relation_filenode({file}::regclass)::bigint
FROM ONLY {schema}.{table} AS t {part}

-- name: part
-- Part of others: the rows in some of a table's blocks
WHERE t.ctid >= {from_block}::tid AND t.ctid < {to_block}::tid

-- name: rest
-- Part of others: the rows in all blocks from one on
WHERE t.ctid >= {from_block}::tid
