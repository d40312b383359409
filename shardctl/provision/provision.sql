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

-- name: stored
-- Tables of these schemas that have pages on disk: no other can have rows
SELECT n.nspname::text, c.relname::text
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND n.nspname = ANY (%(schemas)s) AND pg_relation_size(c.oid) > 0
ORDER BY n.nspname, c.relname

-- name: has_rows
-- Whether a table has a row
SELECT EXISTS (SELECT FROM ONLY {table})

-- name: lacks_connect
-- A row where another role has that name
SELECT FROM pg_roles WHERE rolname = %s AND current_user <> %s

-- name: may_close_public
-- Whether this role may take rights to schema public away
SELECT has_schema_privilege(oid, 'CREATE WITH GRANT OPTION') FROM pg_namespace WHERE nspname = 'public'
