-- name: end_sessions
-- End the other sessions of clients with this application_name, and list them
SELECT pid FROM (
    SELECT pid, pg_catalog.pg_terminate_backend(pid)
    FROM pg_catalog.pg_stat_activity
    WHERE application_name = %(name)s AND backend_type = 'client backend'
      AND datname = current_database() AND pid <> pg_backend_pid()
    OFFSET 0) AS ended
