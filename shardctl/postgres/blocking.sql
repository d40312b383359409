-- name: blockers
-- Which of our sessions wait for a lock, and who holds it
SELECT w.pid, b.pid, a.usename::text, nullif(a.application_name, ''), a.query_start
FROM pg_stat_activity AS w
CROSS JOIN LATERAL unnest(pg_blocking_pids(w.pid)) AS b (pid)
LEFT JOIN pg_stat_activity AS a ON a.pid = b.pid
WHERE w.pid = ANY (%(ours)s) AND w.wait_event_type = 'Lock' AND NOT b.pid = ANY (%(ours)s)
ORDER BY 1, 2
