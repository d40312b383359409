-- name: tables
-- Tables with rows of their own: their columns without generated ones, bytes, whether the binary
-- format is understood by another server. Values of arrays, composite types and extensions name
-- types by OIDs, which differ
SELECT n.nspname::text, c.relname::text,
       ARRAY(SELECT a.attname::text FROM pg_catalog.pg_attribute AS a
             WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
               AND a.attgenerated = '' ORDER BY a.attnum),
       pg_catalog.pg_table_size(c.oid),
       NOT EXISTS (
           SELECT FROM pg_catalog.pg_attribute AS a
           JOIN pg_catalog.pg_type AS t ON t.oid = a.atttypid
           LEFT JOIN pg_catalog.pg_type AS b ON t.typtype = 'd' AND b.oid = t.typbasetype
           LEFT JOIN pg_catalog.pg_type AS e ON e.oid = coalesce(b.typelem, t.typelem)
           WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
             AND (coalesce(b.typsend, t.typsend) = 0 OR e.typsend = 0
                  OR coalesce(b.oid, t.oid) >= 16384 AND coalesce(b.typtype, t.typtype) <> 'e'))
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = ANY (%(schemas)s::name[]) AND c.relkind = 'r'
ORDER BY 4 DESC, 1, 2

-- name: out
-- Read one table as it was in a snapshot, in one message; no lock outlives it
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
SET TRANSACTION SNAPSHOT {snapshot};
COPY {table} {columns} TO STDOUT (FORMAT {format});
COMMIT

-- name: in
-- Fill one table that is empty
COPY {table} {columns} FROM STDIN (FORMAT {format})

-- name: in_frozen
-- Fill a large table: frozen rows need no vacuum later, and no page is written again for hint bits
BEGIN;
TRUNCATE ONLY {table};
COPY {table} {columns} FROM STDIN (FORMAT {format}, FREEZE);
COMMIT
