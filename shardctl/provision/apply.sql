-- name: renumber
-- Each shard's register gets the number of its counter's block, and keeps its time
SELECT setval(r.oid::regclass,
              (((coalesce(pg_sequence_last_value(c.oid::regclass), 0) >> %(sequence_bits)s)
                & %(block_mask)s) << %(time_bits)s)
              | (coalesce(pg_sequence_last_value(r.oid::regclass), 0) & %(time_mask)s))
FROM pg_namespace AS n
JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relname = %(counter)s AND c.relkind = 'S'
JOIN pg_class AS r ON r.relnamespace = n.oid AND r.relname = %(register)s AND r.relkind = 'S'
WHERE n.nspname = ANY (%(schemas)s)

-- name: lacks_connect
-- A row where another role has that name
SELECT FROM pg_roles WHERE rolname = %s AND current_user <> %s

-- name: may_close_public
-- Whether this role may take rights to schema public away
SELECT has_schema_privilege(oid, 'CREATE WITH GRANT OPTION') FROM pg_namespace WHERE nspname = 'public'
