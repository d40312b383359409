-- name: tables
-- Tables of these schemas that are no partitions
SELECT n.nspname::text, c.relname::text
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = ANY (%(schemas)s::name[]) AND c.relkind IN ('r', 'p') AND NOT c.relispartition
ORDER BY c.oid
