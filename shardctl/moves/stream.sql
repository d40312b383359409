-- name: snapshot
-- Hold what can be seen now, and let other sessions see it too
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
SELECT pg_export_snapshot()
