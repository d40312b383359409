-- name: server
-- The server; its start tells it from others
SELECT current_setting('server_version_num')::integer, current_setting('server_version'),
       pg_is_in_recovery(), pg_postmaster_start_time()
