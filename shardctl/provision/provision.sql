-- name: server
-- What kind of server this is
SELECT current_setting('server_version_num')::integer,
       current_setting('server_version'),
       pg_is_in_recovery(),
       current_setting('max_locks_per_transaction')::integer
         * (current_setting('max_connections')::integer
            + current_setting('max_prepared_transactions')::integer),
       (SELECT array_agg(rolname::text) FROM pg_roles WHERE rolname = ANY (%(roles)s))

-- name: database
-- Whether the database exists
SELECT EXISTS (SELECT FROM pg_database WHERE datname = %(name)s)

-- name: lacks_connect
-- A row where another role has that name
SELECT FROM pg_roles WHERE rolname = %s AND current_user <> %s
