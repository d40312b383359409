-- name: migrations
-- Which migrations ran in the moved shards
SELECT array_agg(m::text) FROM shardctl.migration AS m WHERE shard = ANY (%(shards)s)

-- name: forget_migrations
-- Nothing ran in shards that are not here
DELETE FROM shardctl.migration WHERE shard = ANY (%(shards)s)

-- name: note_migrations
-- The same on the target
INSERT INTO shardctl.migration SELECT (one::shardctl.migration).* FROM unnest(%(rows)s::text[]) AS one

-- name: owned
-- Moved shards that the target's map gives to the target
SELECT shard FROM shardctl.map WHERE node = %(target)s AND shard = ANY (%(shards)s)
