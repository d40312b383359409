-- name: node
-- The server, how much the cluster's database takes, its clients but ourselves, and how many idle
SELECT CASE WHEN pg_is_in_recovery() THEN 'standby' ELSE 'primary' END AS role,
       split_part(current_setting('server_version'), ' ', 1) AS version,
       floor(extract(epoch FROM clock_timestamp() - pg_postmaster_start_time()))::integer AS uptime_s,
       pg_database_size(current_database()) AS size_bytes,
       count(*) AS sessions,
       count(*) FILTER (WHERE state LIKE 'idle in transaction%') AS idle_in_transaction
FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
  -- A role that may not see the sessions of other roles gets nulls for all but their database.
  AND coalesce(backend_type, 'client backend') = 'client backend'

-- name: readable
-- Whether we may read the journal; privileges of a table that is missing are null
SELECT coalesce(has_table_privilege(to_regclass('shardctl.move'), 'SELECT')
                AND has_table_privilege(to_regclass('shardctl.move_step'), 'SELECT'), false)

-- name: last_moves
-- When a move last brought each shard to this node
SELECT shard, max(coalesce(ended, changed)) FROM shardctl.move CROSS JOIN unnest(shards) AS shard
WHERE target = %(node)s AND state IN ('unconfirmed', 'done') GROUP BY shard

-- name: schemas
-- Bytes and estimated rows of shards' and retired schemas; bytes are null where a lock forbids
WITH schema AS MATERIALIZED (
    SELECT oid, nspname::text AS name FROM pg_namespace
    WHERE nspname::text = ANY (%(schemas)s) OR nspname ~ '__retired_[0-9a-f]{8}$'
), stored AS MATERIALIZED (
    SELECT oid, relnamespace, relkind, reltoastrelid, reltuples FROM pg_class
    WHERE relkind IN ('r', 'm', 'i', 'S') AND relnamespace IN (SELECT oid FROM schema)
), part AS (
    SELECT oid, relnamespace, relkind, reltuples FROM stored
    UNION ALL
    SELECT reltoastrelid, relnamespace, 't', -1 FROM stored WHERE reltoastrelid <> 0
    UNION ALL
    SELECT i.indexrelid, s.relnamespace, 'i', -1
    FROM stored AS s JOIN pg_index AS i ON i.indrelid = s.reltoastrelid
    WHERE s.reltoastrelid <> 0
), locked AS MATERIALIZED (
    -- pg_relation_size would wait for sessions that hold this lock, and behind those that wait for it.
    SELECT relation FROM pg_locks
    WHERE locktype = 'relation' AND mode = 'AccessExclusiveLock'
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
)
SELECT schema.name,
       CASE WHEN NOT bool_or(coalesce(part.oid IN (SELECT relation FROM locked), false))
            THEN coalesce(sum(CASE WHEN part.oid IN (SELECT relation FROM locked) THEN NULL
                                   -- Always one block; to open a relation costs more than its size.
                                   WHEN part.relkind = 'S' THEN current_setting('block_size')::bigint
                                   ELSE pg_relation_size(part.oid) END), 0)::bigint END,
       (sum(part.reltuples) FILTER (WHERE part.relkind IN ('r', 'm') AND part.reltuples >= 0))::bigint
FROM schema LEFT JOIN part ON part.relnamespace = schema.oid
GROUP BY schema.name

-- name: counters
-- Per schema: rows written and scans begun since the statistics were reset, and when that was read
SELECT n.nspname::text,
       -- Of an index and a table alike, a scan is counted when it begins; its rows are the table's.
       coalesce(sum(pg_stat_get_tuples_inserted(c.oid) + pg_stat_get_tuples_updated(c.oid)
                    + pg_stat_get_tuples_deleted(c.oid)) FILTER (WHERE c.relkind = 'r'), 0)::bigint,
       coalesce(sum(pg_stat_get_numscans(c.oid)), 0)::bigint,
       extract(epoch FROM statement_timestamp())::float8
FROM pg_namespace AS n
LEFT JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relkind IN ('r', 'm', 'i')
WHERE n.nspname::text = ANY (%(schemas)s)
GROUP BY n.nspname

-- name: slots
-- Replication slots of the server, and the WAL that each holds back
SELECT s.slot_name::text, s.slot_type, s.active, s.wal_status,
       pg_wal_lsn_diff(wal.at, s.restart_lsn)::bigint,
       -- Of a logical slot, what its subscriber has not confirmed.
       CASE s.slot_type WHEN 'logical'
                        THEN greatest(0, pg_wal_lsn_diff(wal.at, s.confirmed_flush_lsn))::bigint END
FROM pg_replication_slots AS s,
     (SELECT CASE WHEN pg_is_in_recovery()
                   THEN coalesce(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn())
                   ELSE pg_current_wal_lsn() END AS at) AS wal
ORDER BY 1

-- name: standbys
-- The standbys that stream from the server, and their replay positions; not logical subscribers
SELECT r.application_name, r.state, pg_wal_lsn_diff(wal.at, r.replay_lsn)::bigint,
       extract(epoch FROM r.replay_lag)::float8
FROM pg_stat_replication AS r,
     (SELECT CASE WHEN pg_is_in_recovery()
                   THEN coalesce(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn())
                   ELSE pg_current_wal_lsn() END AS at) AS wal
WHERE NOT EXISTS (
    SELECT FROM pg_replication_slots AS s WHERE s.active_pid = r.pid AND s.slot_type = 'logical'
)
ORDER BY 1, r.pid

-- name: transactions
-- How many transactions the database has ended so far
SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()
