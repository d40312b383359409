-- name: source
-- Its data directory, max_slot_wal_keep_size in MB
SELECT (SELECT setting FROM pg_settings WHERE name = 'data_directory'),
       (SELECT setting FROM pg_settings WHERE name = 'max_slot_wal_keep_size')::bigint
