-- name: server
-- The server; its start distinguishes it from every other server
SELECT current_setting('server_version_num')::integer, current_setting('server_version'),
       pg_is_in_recovery(), pg_postmaster_start_time()
