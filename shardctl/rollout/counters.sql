-- name: counters
-- What clients did on a node since its statistics were reset, and sessions that wait for a lock now
SELECT coalesce(d.xact_commit, 0), coalesce(d.xact_rollback, 0), coalesce(d.deadlocks, 0),
       (SELECT count(*) FROM pg_catalog.pg_stat_activity AS a
        WHERE a.datname = pg_catalog.current_database() AND a.wait_event_type = 'Lock'
          AND a.application_name NOT LIKE 'shardctl %%'
          AND pg_catalog.clock_timestamp() - a.query_start > interval '1 s')
FROM pg_catalog.pg_stat_database AS d WHERE d.datname = pg_catalog.current_database()
