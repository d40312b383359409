-- name: open
-- A new move; the unique index of unfinished ones refuses a second
INSERT INTO shardctl.move (id, state, method, source, target, shards, schemas, retired, plan, who)
VALUES (%(id)s, 'reserved', %(method)s, %(source)s, %(target)s, %(shards)s, %(schemas)s::name[],
        %(retired)s::name[], %(plan)s, %(who)s)

-- name: moves
-- All moves that this node knows of, the newest first
SELECT id, revision, state, method, source, target, shards, schemas::text[], retired::text[], plan,
       who, started, changed, ended, drained_at, drained_to::text, proof, report
FROM shardctl.move ORDER BY started DESC

-- name: set_state
-- The next state, where the move is in one of the given ones: a change by another process stays
UPDATE shardctl.move
SET state = %(state)s, revision = revision + 1, changed = clock_timestamp(),
    ended = CASE WHEN %(closed)s THEN clock_timestamp() ELSE ended END,
    drained_to = coalesce(%(drained_to)s::pg_lsn, drained_to),
    report = coalesce(%(report)s::jsonb, report)
WHERE id = %(id)s AND state = ANY (%(expected)s)
  AND revision = coalesce(%(revision)s::bigint, revision)

-- name: note
-- What was found while the move is in a state; when that began stays: guards go by it
UPDATE shardctl.move
SET revision = revision + 1, proof = coalesce(%(proof)s, proof),
    report = coalesce(%(report)s::jsonb, report)
WHERE id = %(id)s AND state = %(state)s

-- name: follow
-- The version of the map that the cutover of an unfinished move follows
UPDATE shardctl.move
SET plan = plan || jsonb_build_object('map_version', %(version)s::bigint),
    revision = revision + 1
WHERE id = %(id)s AND state = ANY (%(expected)s)

-- name: drained
-- That no write can come any more, and when that was; then up to where the WAL is on the disk
BEGIN;
SET LOCAL synchronous_commit TO local;
UPDATE shardctl.move
SET state = 'drained', revision = revision + 1, changed = clock_timestamp(),
    drained_at = clock_timestamp()
WHERE id = {id} AND state = 'fenced' AND revision = {revision};
COMMIT;
SELECT pg_current_wal_flush_lsn()::text FROM shardctl.move
WHERE id = {id} AND state = 'drained' AND revision = {drained}

-- name: copy
-- Bring this node's record to a newer copy of it
INSERT INTO shardctl.move (id, revision, state, method, source, target, shards, schemas, retired,
                           plan, who, started, changed, ended, drained_at, drained_to, proof, report)
VALUES (%(id)s, %(revision)s, %(state)s, %(method)s, %(source)s, %(target)s, %(shards)s,
        %(schemas)s::name[], %(retired)s::name[], %(plan)s, %(who)s, %(started)s, %(changed)s,
        %(ended)s, %(drained_at)s, %(drained_to)s::pg_lsn, %(proof)s, %(report)s)
ON CONFLICT (id) DO UPDATE
SET revision = excluded.revision, state = excluded.state, plan = excluded.plan,
    changed = excluded.changed, ended = excluded.ended, drained_at = coalesce(excluded.drained_at, move.drained_at),
    drained_to = coalesce(excluded.drained_to, move.drained_to), proof = excluded.proof,
    report = excluded.report
WHERE move.revision < excluded.revision AND move.state NOT IN ('done', 'aborted')

-- name: record_step
-- How a step went, the last time it ran
INSERT INTO shardctl.move_step (move, step, state, took_ms, error)
VALUES (%(move)s, %(step)s, %(state)s, %(took_ms)s, %(error)s)
ON CONFLICT (move, step) DO UPDATE
SET state = excluded.state, took_ms = excluded.took_ms, error = excluded.error,
    started = CASE WHEN excluded.state = 'running' THEN clock_timestamp() ELSE move_step.started END

-- name: record_undone
-- That a step which began was undone; how it went until then stays
UPDATE shardctl.move_step SET state = 'undone' WHERE move = %(move)s AND step = %(step)s

-- name: steps
-- The steps of all moves, in the order in which they last began
SELECT move, step, state, started, took_ms, error FROM shardctl.move_step ORDER BY started, step

-- name: write_progress
-- The progress of a move's copy now, and the WAL that the source holds back for it
INSERT INTO shardctl.move_progress (move, phase, bytes, total, rate, eta_s, lag, wal, wal_limit)
VALUES (%(move)s, %(phase)s, %(bytes)s, %(total)s, %(rate)s, %(eta_s)s, %(lag)s, %(wal)s, %(limit)s)
ON CONFLICT (move) DO UPDATE
SET phase = excluded.phase, bytes = excluded.bytes, total = excluded.total, rate = excluded.rate,
    eta_s = excluded.eta_s, at = clock_timestamp(), lag = coalesce(excluded.lag, move_progress.lag),
    wal = coalesce(excluded.wal, move_progress.wal),
    wal_limit = coalesce(excluded.wal_limit, move_progress.wal_limit)

-- name: read_progress
-- The progress of the copies of all moves
SELECT move, phase, bytes, total, round(rate)::bigint, round(eta_s::numeric, 1)::float8, lag, wal,
       wal_limit, at
FROM shardctl.move_progress

-- name: end_progress
-- That the copy of a move is made; what moves left whose shardctl was killed, and that are over, goes
DELETE FROM shardctl.move_progress WHERE move = %(move)s OR move IN (
    SELECT id FROM shardctl.move WHERE state IN ('done', 'aborted', 'unconfirmed'))

-- name: slots_kept
-- This server's clock, and bytes of WAL that these slots hold back; null for one that is missing or
-- has lost its WAL
SELECT w.slot, clock_timestamp(),
       CASE WHEN s.slot_name IS NOT NULL THEN coalesce(pg_wal_lsn_diff(
           CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END,
           s.restart_lsn), 0)::bigint END
FROM unnest(%(slots)s::text[]) AS w (slot)
LEFT JOIN pg_replication_slots AS s ON s.slot_name = w.slot AND s.wal_status IS DISTINCT FROM 'lost'

-- name: note_reverse
-- Add to the report of a move
UPDATE shardctl.move
SET revision = revision + 1, report = coalesce(report, '{}') || %(report)s::jsonb
WHERE id = %(move)s
