-- name: sizes
-- Bytes of these schemas, indexes and TOAST included, null where a lock forbids to measure; the clock
WITH locked AS MATERIALIZED (
    -- pg_total_relation_size would wait for sessions that hold this lock or wait for it.
    SELECT c.relnamespace FROM pg_locks AS l JOIN pg_class AS c ON c.oid = l.relation
    WHERE l.locktype = 'relation' AND l.mode = 'AccessExclusiveLock'
      AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
)
SELECT n.nspname::text,
       CASE WHEN n.oid NOT IN (SELECT relnamespace FROM locked)
            THEN (SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class AS c
                  WHERE c.relnamespace = n.oid AND c.relkind IN ('r', 'm', 'S')) END,
       clock_timestamp()
FROM pg_namespace AS n
WHERE n.nspname = ANY (%(schemas)s)
ORDER BY 1
