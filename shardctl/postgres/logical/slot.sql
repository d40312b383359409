-- name: end_user
-- End the walsender that uses a slot
SELECT pg_catalog.pg_terminate_backend(active_pid)
FROM pg_catalog.pg_replication_slots WHERE slot_name = %(name)s AND active

-- name: drop
-- Drop it; a row when it was there
SELECT pg_catalog.pg_drop_replication_slot(slot_name)
FROM pg_catalog.pg_replication_slots WHERE slot_name = %(name)s
