-- name: lacks_connect
-- A row where another role has that name
SELECT FROM pg_roles WHERE rolname = %s AND current_user <> %s

-- name: may_close_public
-- Whether this role may take rights to schema public away
SELECT has_schema_privilege(oid, 'CREATE WITH GRANT OPTION') FROM pg_namespace WHERE nspname = 'public'
