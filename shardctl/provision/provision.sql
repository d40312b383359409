-- name: server
-- What kind of server this is, and whether it has the database
SELECT current_setting('server_version_num')::integer,
       current_setting('server_version'),
       pg_is_in_recovery(),
       EXISTS (SELECT FROM pg_database WHERE datname = %(name)s),
       (SELECT array_agg(rolname::text) FROM pg_roles WHERE rolname = ANY (%(roles)s))
