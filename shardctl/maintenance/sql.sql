-- name: begin
-- A transaction for one place, with nothing left of what ran before; and whether its schema exists
{clean}
DEALLOCATE ALL;
BEGIN {mode};
SET LOCAL statement_timeout TO {timeout_ms};
SET LOCAL search_path TO {path};
SELECT {schema} IS NULL OR EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = {schema})

-- name: clean
-- Part of another: what a committed transaction may have left in the session
RESET SESSION AUTHORIZATION; RESET ROLE; RESET ALL; DISCARD TEMP;
