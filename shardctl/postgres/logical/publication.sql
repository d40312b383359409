-- name: tables
-- What a publication of these schemas lists: a partitioned table stands for all of its partitions
SELECT n.nspname::text, c.relname::text
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = ANY (%(schemas)s::name[]) AND c.relkind IN ('r', 'p') AND NOT c.relispartition
ORDER BY 1, 2

-- name: create
-- Publish tables, and of shardctl.stream the rows of one move
BEGIN;
SELECT pg_catalog.set_config('lock_timeout', {lock_timeout}, true);
CREATE PUBLICATION {name} FOR TABLE {tables}
WITH (publish = 'insert, update, delete, truncate', publish_via_partition_root = false);
COMMIT

-- name: oid
-- The publication that has the name
SELECT oid::bigint FROM pg_catalog.pg_publication WHERE pubname = %(name)s

-- name: listed
-- What a publication lists, in the order of `tables`
SELECT n.nspname::text, c.relname::text
FROM pg_catalog.pg_publication AS p
JOIN pg_catalog.pg_publication_rel AS r ON r.prpubid = p.oid
JOIN pg_catalog.pg_class AS c ON c.oid = r.prrelid
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE p.pubname = %(name)s AND n.nspname <> 'shardctl'
ORDER BY 1, 2

-- name: missing_identities
-- Tables without a replica identity, and what they have: d is DEFAULT, n NOTHING, i an index that is gone
SELECT n.nspname::text, c.relname::text, c.relreplident::text
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = ANY (%(schemas)s::name[]) AND c.relkind = 'r' AND c.relreplident <> 'f'
  AND pg_catalog.pg_get_replica_identity_index(c.oid) IS NULL
ORDER BY 1, 2

-- name: identities
-- Which of some tables have REPLICA IDENTITY FULL, or have not if that is wanted, and what they had before
SELECT c.oid::bigint, u.schema::text, u.name::text, u.had
FROM ROWS FROM (unnest(%(schemas)s::name[]), unnest(%(tables)s::name[]), unnest(%(had)s::text[]))
    WITH ORDINALITY AS u (schema, name, had, number)
JOIN pg_catalog.pg_namespace AS n ON n.nspname = u.schema
JOIN pg_catalog.pg_class AS c ON c.relnamespace = n.oid AND c.relname = u.name
WHERE c.relkind = 'r' AND (c.relreplident = 'f') <> %(full)s
ORDER BY u.number
