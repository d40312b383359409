-- name: available
-- Whether repmgr's extension is installed on this server's machine
SELECT FROM pg_available_extensions WHERE name = 'repmgr'

-- name: here
-- Whether this database has repmgr's tables; they are in a schema of this name always
SELECT FROM pg_extension WHERE extname = 'repmgr'

-- name: databases
-- The databases but this one that can be checked
SELECT datname::text FROM pg_database
WHERE datallowconn AND datname <> current_database() ORDER BY 1

-- name: nodes
-- The members of repmgr's cluster, and how they are logged in to
SELECT node_id, node_name, type, active, conninfo FROM repmgr.nodes ORDER BY node_id

-- name: may_leave
-- Whether the session's role may read the cluster, and take a clone out of it
SELECT bool_and(has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
                AND has_table_privilege(c.oid, 'DELETE'))
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = 'repmgr' AND c.relname IN ('nodes', 'events', 'monitoring_history')

-- name: daemon
-- Whether repmgrd runs for this server, and whether it is paused; null where it cannot run
SELECT repmgr.repmgrd_is_running(), repmgr.repmgrd_is_paused()

-- name: leave
-- Forget the cluster: its history, its members; how many of both there were
WITH history AS (DELETE FROM repmgr.monitoring_history),
     event AS (DELETE FROM repmgr.events RETURNING 1),
     node AS (DELETE FROM repmgr.nodes RETURNING 1)
SELECT (SELECT count(*) FROM event) + (SELECT count(*) FROM node)
