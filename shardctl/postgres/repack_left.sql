-- name: leftovers
-- What killed runs of pg_repack left, by table; what another session is at is not among them
WITH found AS (
    SELECT substring(relname FROM '\d+$')::bigint AS tbl, 'repack.' || relname AS name
    FROM pg_class
    WHERE relnamespace = to_regnamespace('repack') AND relkind = 'r' AND relname ~ '^(log|table)_\d{1,10}$'
    UNION ALL
    SELECT substring(typname FROM '\d+$')::bigint, 'repack.' || typname
    FROM pg_type WHERE typnamespace = to_regnamespace('repack') AND typtype = 'c' AND typname ~ '^pk_\d{1,10}$'
    UNION ALL
    SELECT t.tgrelid::bigint, 'a trigger'
    FROM pg_trigger AS t JOIN pg_proc AS p ON p.oid = t.tgfoid
    WHERE t.tgname = 'repack_trigger' AND p.pronamespace = to_regnamespace('repack')
)
SELECT f.tbl, n.nspname::text, c.relname::text, array_agg(f.name ORDER BY f.name)
FROM found AS f
LEFT JOIN pg_class AS c ON c.oid::bigint = f.tbl
LEFT JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE NOT EXISTS (
    -- Anybody may take that lock; pg_repack runs as the table's owner or a superuser.
    SELECT FROM pg_locks AS l JOIN pg_stat_activity AS a ON a.pid = l.pid
    JOIN pg_roles AS r ON r.oid = a.usesysid
    WHERE (r.rolsuper OR coalesce(pg_has_role(r.oid, c.relowner, 'MEMBER'), false))
      AND l.locktype = 'advisory' AND l.classid::bigint = %(class)s AND l.objsubid = 2
      AND l.pid IS DISTINCT FROM pg_backend_pid()
      AND l.objid::bigint = (f.tbl + 2147483648) %% 4294967296
      AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()))
GROUP BY f.tbl, n.nspname, c.relname
ORDER BY f.tbl
