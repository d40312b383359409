-- name: server
-- What kind of server this is
SELECT current_setting('server_version_num')::integer,
       current_setting('server_version'),
       pg_is_in_recovery(),
       current_setting('max_locks_per_transaction')::integer
         * (current_setting('max_connections')::integer
            + current_setting('max_prepared_transactions')::integer),
       (SELECT array_agg(rolname::text) FROM pg_roles WHERE rolname = ANY (%(roles)s)),
       (SELECT array_remove(ARRAY[
                   CASE WHEN NOT (rolsuper OR rolcreaterole) THEN 'CREATEROLE' END,
                   CASE WHEN NOT (rolsuper OR rolcreatedb) THEN 'CREATEDB' END,
                   CASE WHEN NOT has_database_privilege(current_database(), 'CREATE')
                        THEN 'CREATE' END,
                   -- A GRANT without this right is only a warning.
                   CASE WHEN NOT has_database_privilege(current_database(),
                                                        'CONNECT WITH GRANT OPTION')
                         AND EXISTS (SELECT FROM unnest(%(roles)s) AS wanted
                                     LEFT JOIN pg_roles AS r ON r.rolname = wanted
                                     WHERE NOT has_database_privilege(
                                         coalesce(r.rolname, 'public'), current_database(),
                                         'CONNECT'))
                        THEN 'CONNECT WITH GRANT OPTION' END], NULL)
        FROM pg_roles WHERE rolname = current_user)

-- name: database
-- Whether the database exists
SELECT count(*) FROM pg_database WHERE datname = %(name)s

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
