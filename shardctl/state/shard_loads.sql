-- name: rights
-- Whether the journal exists and this role may read it
SELECT coalesce(has_table_privilege(to_regclass('shardctl.move'), 'SELECT'), false)

-- name: counters
-- Rows written and scans begun so far in each shard that the map gives to this node
SELECT m.shard,
       coalesce(sum(pg_stat_get_tuples_inserted(c.oid) + pg_stat_get_tuples_updated(c.oid)
                    + pg_stat_get_tuples_deleted(c.oid)), 0)::bigint,
       coalesce(sum(pg_stat_get_numscans(c.oid)), 0)::bigint
FROM shardctl.map AS m
JOIN pg_namespace AS n ON n.nspname = m.schema
LEFT JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relkind IN ('r', 'm', 'i')
WHERE m.node = %(node)s
GROUP BY m.shard

-- name: reset
-- When the counters of this database, or of a table in it, were last set to zero
SELECT pg_stat_get_db_stat_reset_time(oid)::text FROM pg_database
WHERE datname = current_database()

-- name: sizes
-- Bytes and estimated rows of each shard that the map gives to this node; bytes are null where a lock forbids
WITH shard AS MATERIALIZED (
    SELECT m.shard, m.schema::text AS schema, n.oid
    FROM shardctl.map AS m LEFT JOIN pg_namespace AS n ON n.nspname = m.schema
    WHERE m.node = %(node)s
), stored AS MATERIALIZED (
    SELECT oid, relnamespace, relkind, reltoastrelid, reltuples FROM pg_class
    WHERE relkind IN ('r', 'm', 'i', 'S') AND relnamespace IN (SELECT oid FROM shard)
), part AS (
    SELECT oid, relnamespace,
           CASE WHEN relkind NOT IN ('r', 'm') THEN 0
                WHEN reltuples >= 0 THEN reltuples
                -- Never analysed: what the server has counted since it began to.
                ELSE pg_stat_get_live_tuples(oid) END AS live_rows
    FROM stored
    UNION ALL
    SELECT reltoastrelid, relnamespace, 0 FROM stored WHERE reltoastrelid <> 0
    UNION ALL
    SELECT i.indexrelid, s.relnamespace, 0
    FROM stored AS s JOIN pg_index AS i ON i.indrelid = s.reltoastrelid
    WHERE s.reltoastrelid <> 0
), locked AS MATERIALIZED (
    -- pg_relation_size would wait for sessions that hold this lock, and behind those that wait for it.
    SELECT relation FROM pg_locks
    WHERE locktype = 'relation' AND mode = 'AccessExclusiveLock'
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
)
SELECT shard.shard, shard.schema, shard.oid IS NOT NULL,
       CASE WHEN shard.oid IS NOT NULL
                 AND NOT bool_or(coalesce(part.oid IN (SELECT relation FROM locked), false))
            THEN coalesce(sum(CASE WHEN part.oid IN (SELECT relation FROM locked) THEN NULL
                                   ELSE pg_relation_size(part.oid) END), 0)::bigint END,
       CASE WHEN shard.oid IS NOT NULL THEN coalesce(sum(part.live_rows), 0)::bigint END
FROM shard LEFT JOIN part ON part.relnamespace = shard.oid
GROUP BY shard.shard, shard.schema, shard.oid

-- name: moved
-- The last move that gave each shard to this node, and when it ended
SELECT DISTINCT ON (s.shard) s.shard, v.id, coalesce(v.ended, v.changed)
FROM shardctl.move AS v CROSS JOIN unnest(v.shards) AS s (shard)
WHERE v.target = %(node)s AND v.state IN ('claimed', 'routed', 'unconfirmed', 'done')
ORDER BY s.shard, v.started DESC
