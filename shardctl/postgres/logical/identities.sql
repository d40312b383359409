-- name: missing
-- Tables without a replica identity, and what they have: d is DEFAULT, n NOTHING, i an index that is gone
SELECT n.nspname::text, c.relname::text, c.relreplident::text
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = ANY (%(schemas)s::name[]) AND c.relkind = 'r' AND c.relreplident <> 'f'
  AND pg_catalog.pg_get_replica_identity_index(c.oid) IS NULL
ORDER BY 1, 2

-- name: to_change
-- Which of some tables have REPLICA IDENTITY FULL, or have not if that is wanted; by place in the list
SELECT c.oid::bigint, u.number
FROM ROWS FROM (unnest(%(schemas)s::name[]), unnest(%(tables)s::name[]))
    WITH ORDINALITY AS u (schema, name, number)
JOIN pg_catalog.pg_namespace AS n ON n.nspname = u.schema
JOIN pg_catalog.pg_class AS c ON c.relnamespace = n.oid AND c.relname = u.name
WHERE c.relkind = 'r' AND (c.relreplident = 'f') <> %(full)s
ORDER BY u.number
