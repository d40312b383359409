-- name: present
-- Whether schema shardctl is in this database
SELECT to_regclass('shardctl.cluster') IS NOT NULL, to_regnamespace('shardctl') IS NOT NULL

-- name: cluster
-- The one row that describes what this node is
SELECT format, cluster, node, identity::text, shard_count, schema_pattern,
       epoch_ms, tick_ms, time_bits, shard_bits, sequence_bits, generator, map_version,
       key_rule
FROM shardctl.cluster

-- name: make_cluster
-- The row of a new node; the whole map comes last, so its version is 0
INSERT INTO shardctl.cluster (format, cluster, node, shard_count, schema_pattern, epoch_ms,
                              tick_ms, time_bits, shard_bits, sequence_bits, generator, map_version,
                              key_rule)
VALUES (%(format)s, %(cluster)s, %(node)s, %(shard_count)s, %(schema_pattern)s, %(epoch_ms)s,
        %(tick_ms)s, %(time_bits)s, %(shard_bits)s, %(sequence_bits)s, %(generator)s, 0,
        %(key_rule)s)

-- name: set_generator
-- Which generator the functions now hold
UPDATE shardctl.cluster SET generator = %(generator)s

-- name: map
-- Every shard that this node knows of
SELECT shard, node FROM shardctl.map

-- name: write_map
-- The whole map
INSERT INTO shardctl.map (shard, schema, node)
SELECT * FROM unnest(%(shards)s::integer[], %(schemas)s::text[], %(nodes)s::text[])
ON CONFLICT (shard) DO UPDATE SET schema = excluded.schema, node = excluded.node
WHERE (map.schema, map.node) IS DISTINCT FROM (excluded.schema, excluded.node)

-- name: set_map_version
-- The version only grows; the row is locked until the map that comes with it is there, too
UPDATE shardctl.cluster SET map_version = %(version)s WHERE map_version <= %(version)s RETURNING true

-- name: migrations
-- Which file, with which checksum, ran in which shards
SELECT file, checksum, array_agg(shard) FROM shardctl.migration GROUP BY file, checksum

-- name: record_migration
-- That a file ran in these shards
INSERT INTO shardctl.migration (shard, file, checksum)
SELECT unnest(%(shards)s::integer[]), %(file)s, %(checksum)s

-- name: record_event
-- The audit trail
INSERT INTO shardctl.event (who, command, result) VALUES (%(who)s, %(command)s, %(result)s)

-- name: events
-- The audit trail from a moment on
SELECT at, id, who, command, result FROM shardctl.event WHERE at >= %(since)s

-- name: try_lock
-- The lock of a command that changes this node
SELECT pg_try_advisory_lock(%(class)s, %(key)s)

-- name: unlock_class
-- Release all locks of a class that this session has
SELECT pg_advisory_unlock(classid::bigint::integer, objid::bigint::integer) FROM pg_locks
WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND classid = %(class)s AND objsubid = 2

-- name: lock_holder
-- What else holds that lock, and counts: anybody may take an advisory lock, and a name
SELECT a.application_name, a.backend_start
FROM pg_locks AS l
JOIN pg_stat_activity AS a ON a.pid = l.pid
JOIN pg_database AS d ON d.oid = l.database AND d.datname = current_database()
LEFT JOIN pg_namespace AS n ON n.nspname = 'shardctl'
WHERE l.locktype = 'advisory' AND l.granted AND l.pid <> pg_backend_pid()
  AND l.classid = %(class)s AND l.objsubid = 2
  AND (a.usename = session_user OR pg_has_role(a.usesysid, d.datdba, 'MEMBER')
       OR coalesce(pg_has_role(a.usesysid, n.nspowner, 'MEMBER'), false))
ORDER BY a.backend_start
LIMIT 1

-- name: server
-- What kind of server this is, and whether it has the database
SELECT current_setting('server_version_num')::integer,
       current_setting('server_version'),
       pg_is_in_recovery(),
       EXISTS (SELECT FROM pg_database WHERE datname = %(name)s),
       (SELECT array_agg(rolname::text) FROM pg_roles WHERE rolname = ANY (%(roles)s))
