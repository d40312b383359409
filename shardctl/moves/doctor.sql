-- name: drop_role
-- Drop a role with its rights in this database; what it owns goes to who drops it
BEGIN;
GRANT {role} TO CURRENT_USER;
REASSIGN OWNED BY {role} TO CURRENT_USER;
DROP OWNED BY {role};
DROP ROLE {role};
COMMIT

-- name: forget
-- Forget what a move wrote into its stream, and its copies here
BEGIN;
DELETE FROM shardctl.stream WHERE move = {move};
DELETE FROM shardctl.stream_copy WHERE move = {move};
COMMIT

-- name: open_schemas
-- Schemas with triggers of a move
SELECT DISTINCT n.nspname::text FROM pg_trigger AS g
JOIN pg_class AS c ON c.oid = g.tgrelid JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE g.tgname IN ('shardctl_copy', 'shardctl_copy_truncate')
  AND split_part(encode(g.tgargs, 'escape'), '\000', 2) = %(move)s

-- name: drop_function
-- Drop the function by which a target claims
DROP FUNCTION IF EXISTS shardctl.{name}
