-- name: make
-- The load's own table in one shard, after dropping one of an earlier run
DROP TABLE IF EXISTS {table};
CREATE TABLE {table} (
    id bigint PRIMARY KEY DEFAULT {next_id}(),
    client integer NOT NULL,
    number bigint NOT NULL,
    version integer NOT NULL,
    payload text NOT NULL,
    UNIQUE (client, number)
);
COMMENT ON TABLE {table} IS {mark};
GRANT SELECT, INSERT, UPDATE ON {table} TO {role};

-- name: drop
-- The table in one shard
DROP TABLE IF EXISTS {table};

-- name: schemas
-- Every schema that may be a live shard's, and the comment on the load's table, if it has one
SELECT n.nspname::text, c.oid IS NOT NULL, coalesce(obj_description(c.oid, 'pg_class'), '')
FROM pg_namespace AS n
LEFT JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relname = %(table)s
WHERE n.nspname = ANY (%(schemas)s)

-- name: rows
-- All rows of one shard
SELECT id, client, number, version FROM {table}

-- name: insert
-- A new row, at version 1
INSERT INTO {table} (client, number, version, payload) VALUES ($1, $2, 1, $3) RETURNING id

-- name: update
-- The next version of a row; a delayed older update whose answer was lost cannot undo it
UPDATE {table} SET version = $2, payload = $3 WHERE id = $1 AND version < $2

-- name: select
-- The version that a row has
SELECT version FROM {table} WHERE id = $1
