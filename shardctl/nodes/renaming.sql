-- name: retired
-- Retired copies in this database
SELECT nspname::text FROM pg_namespace WHERE nspname ~ '__retired_[0-9a-f]{8}$' ORDER BY 1
