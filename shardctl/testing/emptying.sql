-- name: prepare
-- Settings of the session that empties: no triggers, rules or foreign keys, and no long waits
SET session_replication_role = replica;
SET lock_timeout = '5s'

-- name: filled
-- Tables that have pages, in shards and elsewhere
SELECT n.nspname::text, c.relname::text, pg_relation_size(c.oid)
FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND c.relpersistence <> 't'
  AND n.nspname NOT IN ('pg_catalog', 'pg_toast', 'information_schema', 'shardctl')
  AND pg_relation_size(c.oid) > 0
  AND NOT EXISTS (SELECT FROM pg_depend AS d
                  WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid
                    AND d.deptype = 'e')

-- name: end_left
-- Terminate the sessions that are idle in a transaction with writes
SELECT pid, left(query, 80), pg_terminate_backend(pid, 5000)
FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
  AND backend_xid IS NOT NULL
  AND state IN ('idle in transaction', 'idle in transaction (aborted)')

-- name: versions
-- The number of a table's rows, and a checksum of their versions
SELECT {position}, count(*), coalesce(sum(hashtextextended(ctid::text || xmin::text, 0)), 0)
FROM ONLY {table}

-- name: lock
-- Wait for all tables at once, with a timeout; then only TRUNCATE waits, for who reads
SET LOCAL statement_timeout = {patience_ms};
LOCK TABLE ONLY {tables} IN EXCLUSIVE MODE;
SET LOCAL statement_timeout = 0

-- name: delete
-- Empty a table that is small
DELETE FROM ONLY {table}

-- name: truncate
-- Empty a table that is large, and those that refer to it
TRUNCATE ONLY {table} CASCADE

-- name: save
-- Read a table's rows
COPY {table} TO STDOUT (FORMAT binary)

-- name: restore
-- Write a table's rows
COPY {table} FROM STDIN (FORMAT binary)
