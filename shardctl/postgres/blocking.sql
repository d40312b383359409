-- name: who
-- Part of others: who session `a` is, or else prepared transaction `p`
a.usename::text, coalesce(nullif(a.application_name, ''), p.gid), nullif(a.state, 'active'),
coalesce(a.xact_start, p.prepared) AS since, CASE a.state WHEN 'active' THEN a.query END

-- name: blockers
-- Which of these sessions wait for a lock, and who holds it, oldest first; pid 0 is a prepared transaction
SELECT DISTINCT w.pid, b.pid, {who}
FROM pg_stat_activity AS w
CROSS JOIN LATERAL unnest(pg_blocking_pids(w.pid)) AS b (pid)
LEFT JOIN pg_stat_activity AS a ON a.pid = b.pid
LEFT JOIN pg_locks AS l ON b.pid = 0 AND l.pid = w.pid AND NOT l.granted
LEFT JOIN pg_prepared_xacts AS p ON p.transaction = l.transactionid
WHERE w.pid = ANY (%(ours)s) AND w.wait_event_type = 'Lock' AND NOT b.pid = ANY (%(ours)s)
ORDER BY w.pid, since, b.pid

-- name: held
-- Who holds or awaits other locks than these on relations of schemas (all, or some), or on the schemas,
-- oldest first: a lock waits behind what waits for one, too. And in how many ms it gives way to who waits
WITH schema AS MATERIALIZED (
    SELECT oid, nspname FROM pg_namespace WHERE nspname = ANY (%(schemas)s::name[])
), held AS (
    SELECT s.nspname, c.oid, l.pid, l.granted, l.mode, l.virtualtransaction AS run,
           CASE WHEN c.oid IS NULL THEN 'schema ' || s.nspname
                ELSE format('%%I.%%I', s.nspname, c.relname) END AS what,
           c.oid IS NOT NULL AND c.relkind NOT IN ('r', 'p') AS is_part
    FROM pg_locks AS l
    LEFT JOIN pg_class AS c ON l.locktype = 'relation' AND c.oid = l.relation AND l.mode <> ALL (%(but)s)
    JOIN schema AS s ON s.oid = coalesce(c.relnamespace, CASE
        WHEN l.locktype = 'object' AND l.classid = 'pg_namespace'::regclass THEN l.objid END)
    WHERE (%(tables)s::oid[] IS NULL OR c.oid = ANY (%(tables)s::oid[]))
      AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
)
SELECT h.nspname::text, h.oid, h.granted, h.mode, h.what,
       CASE WHEN a.backend_type = 'autovacuum worker' AND a.query NOT LIKE '%%to prevent wraparound%%'
            THEN (SELECT setting::integer + 500 FROM pg_settings WHERE name = 'deadlock_timeout') END,
       coalesce(h.pid, 0), {who}
FROM held AS h
LEFT JOIN pg_stat_activity AS a ON a.pid = h.pid
LEFT JOIN LATERAL (
    -- It has kept the virtual transaction of the session that has prepared it.
    SELECT x.gid, x.prepared
    FROM pg_locks AS l JOIN pg_prepared_xacts AS x ON x.transaction = l.transactionid
    WHERE h.pid IS NULL AND l.pid IS NULL AND l.virtualtransaction = h.run LIMIT 1
) AS p ON true
WHERE h.pid IS DISTINCT FROM pg_backend_pid()
ORDER BY since, h.pid, h.granted DESC, h.is_part, h.mode, h.what

-- name: triggers
-- Event triggers; none on a standby, where nothing can be tried
SELECT evtname::text FROM pg_event_trigger
WHERE evtenabled <> 'D' AND evtevent <> 'login' AND NOT pg_is_in_recovery()
ORDER BY 1
