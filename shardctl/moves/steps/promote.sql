-- name: subscriptions
-- Subscriptions that the clone has copied: name, database, whether it is this one, whether enabled
SELECT s.subname::text, d.datname::text, d.datname = current_database(), s.subenabled
FROM pg_subscription AS s JOIN pg_database AS d ON d.oid = s.subdbid
ORDER BY 2, 1

-- name: leaving
-- Live schemas of shards that stay on the source, some at a time
SELECT m.schema::text FROM shardctl.map AS m JOIN pg_namespace AS n ON n.nspname = m.schema
WHERE m.node = %(source)s AND m.shard <> ALL (%(moved)s::integer[]) ORDER BY m.shard LIMIT %(most)s

-- name: own_node
-- The node gets its own name and identity, once
UPDATE shardctl.cluster SET node = %(target)s, identity = gen_random_uuid() WHERE node <> %(target)s

-- name: retire
-- Schemas of shards that stay on the source lose their names
DO $retire$
DECLARE
    one record;
BEGIN
    FOR one IN SELECT * FROM unnest({schemas}::text[], {retired}::text[]) AS u (schema, retired) LOOP
        EXECUTE pg_catalog.format('ALTER SCHEMA %I RENAME TO %I', one.schema, one.retired);
    END LOOP;
END
$retire$

-- name: workers
-- How many workers of subscriptions the server allows
SELECT current_setting('max_logical_replication_workers')::integer
