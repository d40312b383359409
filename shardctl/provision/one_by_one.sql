-- name: begun
-- The statement at which a file is in a shard, and whether it was running when it was stopped
SELECT statement, running FROM shardctl.migration_begun
WHERE shard = %(shard)s AND file = %(file)s AND checksum = %(checksum)s

-- name: begin
-- That a statement begins, and those before it are done
INSERT INTO shardctl.migration_begun (shard, file, checksum, statement, running)
VALUES ({shard}, {file}, {checksum}, {statement}, {running})
ON CONFLICT (shard, file) DO UPDATE
SET checksum = excluded.checksum, statement = excluded.statement, running = excluded.running,
    at = pg_catalog.clock_timestamp()

-- name: forget
-- That a file is finished in a shard, or has to be run from its beginning
DELETE FROM shardctl.migration_begun WHERE shard = %(shard)s AND file = %(file)s

-- name: index
-- An index of a shard: whether it is valid, and which session builds it at this moment
SELECT i.indisvalid, (SELECT p.pid FROM pg_catalog.pg_stat_progress_create_index AS p
                      WHERE p.index_relid = c.oid AND p.datname = pg_catalog.current_database())
FROM pg_catalog.pg_index AS i
JOIN pg_catalog.pg_class AS c ON c.oid = i.indexrelid
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = %(schema)s AND c.relname = %(name)s

-- name: invalid
-- An invalid index of a shard
SELECT c.relname::text FROM pg_catalog.pg_index AS i
JOIN pg_catalog.pg_class AS c ON c.oid = i.indexrelid
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE NOT i.indisvalid AND n.nspname = %(schema)s LIMIT 1
