-- name: blockers
-- The transactions that a session waits for, oldest first: pid 0 is a prepared one
SELECT b.pid, a.usename::text, coalesce(nullif(a.application_name, ''), p.gid),
       coalesce(a.xact_start, p.prepared)
FROM pg_catalog.pg_locks AS l
CROSS JOIN LATERAL unnest(pg_catalog.pg_blocking_pids(l.pid)) AS b (pid)
LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid = b.pid
LEFT JOIN pg_catalog.pg_prepared_xacts AS p ON b.pid = 0 AND p.transaction = l.transactionid
WHERE l.pid = %(pid)s AND NOT l.granted
ORDER BY 4

-- name: end_user
-- End the walsender that uses a slot
SELECT pg_catalog.pg_terminate_backend(active_pid)
FROM pg_catalog.pg_replication_slots WHERE slot_name = %(name)s AND active

-- name: drop
-- Drop it; a row when it was there
SELECT pg_catalog.pg_drop_replication_slot(slot_name)
FROM pg_catalog.pg_replication_slots WHERE slot_name = %(name)s
