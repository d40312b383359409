-- name: blockers
-- Which of our sessions wait for a lock, and who holds it
SELECT w.pid, b.pid, a.usename::text, nullif(a.application_name, ''), a.query_start, a.query
FROM pg_stat_activity AS w
CROSS JOIN LATERAL unnest(pg_blocking_pids(w.pid)) AS b (pid)
LEFT JOIN pg_stat_activity AS a ON a.pid = b.pid
WHERE w.pid = ANY (%(ours)s) AND w.wait_event_type = 'Lock' AND NOT b.pid = ANY (%(ours)s)
ORDER BY 1, 2

-- name: holding
-- Who holds or awaits other locks than these on such tables or on their schemas, oldest first: pid,
-- who, whether it holds the lock, which one, and on what. A lock waits behind what waits for one, too.
-- A prepared transaction has no pid, and its name is who
WITH schema AS MATERIALIZED (
    SELECT oid, nspname FROM pg_namespace WHERE nspname = ANY (%(schemas)s::name[])
), held AS (
    SELECT l.pid, l.granted, l.mode, format('%%I.%%I', s.nspname, c.relname) AS what,
           l.virtualtransaction AS run
    FROM pg_locks AS l
    JOIN pg_class AS c ON c.oid = l.relation AND c.relkind IN ('r', 'p')
    JOIN schema AS s ON s.oid = c.relnamespace
    WHERE l.locktype = 'relation' AND l.mode <> ALL (%(but)s)
      AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    UNION ALL
    SELECT l.pid, l.granted, l.mode, 'schema ' || s.nspname, l.virtualtransaction
    FROM pg_locks AS l
    JOIN schema AS s ON s.oid = l.objid AND l.classid = 'pg_namespace'::regclass
    WHERE l.locktype = 'object'
      AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
), one_each AS (
    SELECT DISTINCT ON (h.pid) h.*
    FROM held AS h
    WHERE h.pid IS DISTINCT FROM pg_backend_pid()
    ORDER BY h.pid, h.granted DESC, h.mode, h.what
)
SELECT h.pid,
       concat_ws(', ', CASE a.backend_type WHEN 'autovacuum worker' THEN left(a.query, 80) END,
                 p.gid, 'user ' || a.usename, 'application ' || nullif(a.application_name, ''),
                 nullif(a.state, 'active'),
                 'since ' || date_trunc('second', clock_timestamp() - a.xact_start)),
       h.granted, h.mode, h.what
FROM one_each AS h
LEFT JOIN pg_stat_activity AS a ON a.pid = h.pid
LEFT JOIN LATERAL (
    -- It has kept the virtual transaction of the session that has prepared it.
    SELECT x.gid FROM pg_locks AS l JOIN pg_prepared_xacts AS x ON x.transaction = l.transactionid
    WHERE h.pid IS NULL AND l.pid IS NULL AND l.virtualtransaction = h.run LIMIT 1
) AS p ON true
ORDER BY a.xact_start NULLS FIRST

-- name: temporary
-- The session that has temporary schema N; before 16 those of the role that owns its tables
SELECT string_agg(concat_ws(', ', 'pid ' || a.pid, 'user ' || a.usename,
                            'application ' || nullif(a.application_name, '')),
                  ' or ' ORDER BY a.pid)
FROM pg_stat_activity AS a
WHERE a.datname = current_database() AND CASE
    WHEN current_setting('server_version_num')::integer >= 160000
        THEN a.pid = pg_stat_get_backend_pid(%(number)s::integer)
    ELSE a.usesysid IN (SELECT c.relowner FROM pg_class AS c
                        JOIN pg_namespace AS n ON n.oid = c.relnamespace
                        WHERE n.nspname = 'pg_temp_' || %(number)s::integer)
    END
