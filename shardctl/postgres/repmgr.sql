-- name: here
-- Whether this database has repmgr's tables; they are in a schema of this name always
SELECT FROM pg_extension WHERE extname = 'repmgr'

-- name: databases
-- The databases but this one that can be checked
SELECT datname::text FROM pg_database
WHERE datallowconn AND datname <> current_database() ORDER BY 1

-- name: leave
-- Forget the cluster: its history, its members; how many of both there were
WITH history AS (DELETE FROM repmgr.monitoring_history),
     event AS (DELETE FROM repmgr.events RETURNING 1),
     node AS (DELETE FROM repmgr.nodes RETURNING 1)
SELECT (SELECT count(*) FROM event) + (SELECT count(*) FROM node)
