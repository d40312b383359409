-- name: may
-- Whether the table exists, and this role has these rights to it
SELECT coalesce(bool_and(has_table_privilege(to_regclass('shardctl.move_progress'), wanted)), false)
FROM unnest(%(rights)s::text[]) AS wanted

-- name: write
-- The progress of a move's copy now
INSERT INTO shardctl.move_progress (move, phase, bytes, total, rate, eta_s)
VALUES (%(move)s, %(phase)s, %(bytes)s, %(total)s, %(rate)s, %(eta_s)s)
ON CONFLICT (move) DO UPDATE
SET phase = excluded.phase, bytes = excluded.bytes, total = excluded.total, rate = excluded.rate,
    eta_s = excluded.eta_s, at = clock_timestamp()

-- name: read
-- The progress of the copies of all moves
SELECT move, phase, bytes, total, rate, eta_s, at, lag, wal, wal_limit
FROM shardctl.move_progress

-- name: held
-- The WAL that the source holds back for the target of a move now
UPDATE shardctl.move_progress
SET lag = %(lag)s, wal = %(wal)s, wal_limit = %(limit)s
WHERE move = %(move)s

-- name: end
-- That the copy of a move is made
DELETE FROM shardctl.move_progress WHERE move = %(move)s
