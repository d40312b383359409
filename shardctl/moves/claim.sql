-- name: owning
-- Part of a claim's block: the journal, the names and the map say that this server owns the shards;
-- the block declares `one`, a record
-- The source is `promoting`, or this server would not take writes. It may not have had that
-- change: then the source's record is one change ahead.
UPDATE shardctl.move
SET state = 'claimed', changed = pg_catalog.clock_timestamp(),
    drained_to = coalesce(drained_to, {lsn}::pg_catalog.pg_lsn),
    revision = revision + CASE state WHEN 'promoting' THEN 1 ELSE 2 END
    {also}
WHERE id = {move} AND state IN ('drained', 'promoting');
IF NOT FOUND THEN
    RAISE EXCEPTION 'move % is not promoting', {move} USING ERRCODE = 'SH002';
END IF;
{within}
{names_back}
UPDATE shardctl.cluster SET map_version = {map_version};
UPDATE shardctl.map AS m SET node = {target}
FROM shardctl.move AS v WHERE v.id = {move} AND m.shard = ANY (v.shards);

-- name: warm
-- Let the server read and compile what opens blocks; a standby refuses its write
DO $warm$
BEGIN
    IF pg_is_in_recovery() THEN
        PERFORM shardctl.open_block_at(
            pg_catalog.format('%I.%I', {schema}::text, {register}::text)::regclass, 0, 0);
    END IF;
EXCEPTION WHEN read_only_sql_transaction THEN
    NULL;
END
$warm$

-- name: open
-- Raise new ids of the moved shards above all earlier ones: register before counter, only upwards
SELECT count(shardctl.open_block_at(
    pg_catalog.format('%I.%I', u.schema, {register}::text)::regclass,
    coalesce(pg_sequence_last_value(
        pg_catalog.format('%I.%I', u.schema, {counter}::text)::regclass), 0) >> {sequence_bits},
    greatest((ceil(extract(epoch FROM m.drained_at) * 1000)::bigint - {epoch_ms}) / {tick_ms}, 0)))
FROM shardctl.move AS m, LATERAL unnest(m.schemas, m.retired) AS s (live, retired),
     -- A stream's copies have the live names.
     LATERAL (SELECT CASE WHEN EXISTS (SELECT FROM pg_namespace WHERE nspname = s.retired)
                          THEN s.retired ELSE s.live END) AS u (schema)
WHERE m.id = {move} AND m.state IN ('drained', 'promoting')

-- name: wait_for_clock
-- Wait until this server's clock shows more than the source's did, a whole tick more
SELECT pg_sleep(greatest(0, extract(epoch FROM drained_at - clock_timestamp())
                            + ({tick_ms} + 1) / 1000.0)::double precision)
FROM shardctl.move WHERE id = {move} AND state IN ('drained', 'promoting')

-- name: decide
-- The point of no return: `drained` and `promoting`, and the same in the stream, with the clock and how
-- far the sequences are. Locks on tables do not stop nextval(), so they are read here, when nothing
-- holds a moved sequence
UPDATE shardctl.move
SET state = 'drained', revision = revision + 1, changed = clock_timestamp(),
    drained_at = clock_timestamp()
WHERE id = {move} AND state = 'fenced' AND revision = {drained};
WITH decided AS (
    UPDATE shardctl.move
    SET state = 'promoting', revision = revision + 1, changed = clock_timestamp(),
        drained_to = coalesce({lsn}::pg_lsn, drained_to)
    WHERE id = {move} AND state = 'drained' AND revision = {revision}
    RETURNING *
)
INSERT INTO shardctl.stream (move, attempt, what, note)
SELECT d.id, {attempt}, 'decision', jsonb_build_object(
    'attempt', {attempt}, 'state', d.state, 'revision', d.revision,
    'drained_at', d.drained_at, 'drained_to', d.drained_to::text,
    'sequences', coalesce((
        SELECT jsonb_agg(jsonb_build_object('schema', u.schema, 'name', c.relname,
                                            'last', pg_sequence_last_value(c.oid)))
        FROM unnest(d.schemas, d.retired) AS u (schema, retired)
        JOIN pg_namespace AS n ON n.nspname = u.retired
        JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relkind = 'S'
        WHERE CASE WHEN c.relkind <> 'S' THEN false
                   WHEN has_sequence_privilege(c.oid, 'USAGE, SELECT')
                   THEN pg_sequence_last_value(c.oid) IS NOT NULL END), '[]'))
FROM decided AS d
RETURNING note

-- name: sequences
-- What a decision has of each sequence, without a value to set: that could not be rolled back
SELECT jsonb_build_object('schema', n.nspname, 'name', c.relname, 'last', NULL)
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = ANY (%(schemas)s) AND c.relkind = 'S'

-- name: serves
-- Claim the shards if that is decided; whether this server owns them then
SELECT shardctl.{name}(NULL)

-- name: claim
-- The same for who knows the decision before it arrives
SELECT shardctl.{name}({decision}::jsonb)

-- name: drop_claim
-- Remove the function, when the move is over
DROP FUNCTION IF EXISTS shardctl.{name}(jsonb)

-- name: claiming
-- The claim of a move: shardctl and the guards on the poolers' hosts call it, in any order, and one
-- of them makes the target the owner. Only what the move's own journal here knows is claimed
CREATE OR REPLACE FUNCTION shardctl.{name}(given jsonb) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
-- A rehearsal plans all of it once, and later calls use these plans.
SET plan_cache_mode = force_generic_plan AS $claim$
DECLARE
    one      record;
    there    text;
    decision jsonb := given;
    began    pg_lsn;
BEGIN
    PERFORM pg_catalog.set_config('synchronous_commit', 'local', true);
    SELECT state INTO there FROM shardctl.move WHERE id = {move} FOR UPDATE;
    IF there = ANY ({claimed}) THEN
        RETURN true;
    END IF;
    IF decision IS NULL THEN
        SELECT note INTO decision FROM shardctl.stream
        WHERE move = {move} AND what = 'decision' ORDER BY attempt DESC LIMIT 1;
    END IF;
    -- A standby of this server that was promoted may lack rows that its stream does not send
    -- again. It has this mark only with everything before it.
    IF there IS NULL OR there = 'aborted' OR decision IS NULL OR NOT EXISTS (
        SELECT FROM shardctl.stream
        WHERE move = {move} AND attempt = (decision->>'attempt')::integer AND what = {mark}
    ) THEN
        RETURN false;
    END IF;
    -- All of the stream is on the disk before the mark, and clients write when this has committed:
    -- behind this position, changes of the moved shards are this server's own.
    began := pg_catalog.pg_current_wal_insert_lsn();
    -- What the source has decided counts here from now on.
    UPDATE shardctl.move
    SET state = decision->>'state', revision = (decision->>'revision')::bigint,
        changed = pg_catalog.clock_timestamp(),
        drained_at = (decision->>'drained_at')::timestamptz,
        drained_to = (decision->>'drained_to')::pg_lsn
    WHERE id = {move} AND revision < (decision->>'revision')::bigint;
    -- A sequence that was never used goes on with the value that it would have given next.
    PERFORM pg_catalog.setval(c.oid::regclass, j.next, false)
    FROM shardctl.stream AS m,
        LATERAL pg_catalog.jsonb_to_recordset(m.note->'uncalled')
            AS j (schema name, name name, next bigint)
        JOIN pg_catalog.pg_namespace AS n ON n.nspname = j.schema
        JOIN pg_catalog.pg_class AS c ON c.relnamespace = n.oid AND c.relname = j.name
    WHERE m.move = {move} AND m.attempt = (decision->>'attempt')::integer AND m.what = {fence}
      -- A server may look at this before it looks at the names: of what is no sequence, too.
      AND CASE c.relkind WHEN 'S' THEN pg_catalog.pg_sequence_last_value(c.oid) IS NULL END;
    -- A few values more than were drawn, where there are plenty; of the register of ids, the very value.
    PERFORM pg_catalog.setval(u.oid, u.wanted)
    FROM (
        SELECT c.oid::regclass AS oid, s.seqincrement > 0 AS upwards, s.seqcycle AS cycles,
               (j.last + CASE
                    WHEN c.relname = {register} THEN 0
                    WHEN {plenty} * {margin} * pg_catalog.abs(s.seqincrement::numeric)
                         > CASE WHEN s.seqincrement > 0 THEN s.seqmax - j.last ELSE j.last - s.seqmin END
                    THEN 0
                    ELSE {margin}::numeric * s.seqincrement END)::bigint AS wanted,
               pg_catalog.pg_sequence_last_value(s.seqrelid) AS had
        FROM pg_catalog.jsonb_to_recordset(decision->'sequences')
            AS j (schema name, name name, last numeric)
        JOIN pg_catalog.pg_namespace AS n ON n.nspname = j.schema
        JOIN pg_catalog.pg_class AS c ON c.relnamespace = n.oid AND c.relname = j.name
        JOIN pg_catalog.pg_sequence AS s ON s.seqrelid = c.oid
    ) AS u
    -- What had them before may be ahead, and what cycles has come round since.
    WHERE u.had IS NULL OR u.cycles OR CASE WHEN u.upwards THEN u.wanted > u.had ELSE u.wanted < u.had END;
    {blocks}
    {owning}
    IF decision ? {stays_closed} THEN
        RETURN true;
    END IF;
    {opening}
    RETURN true;
END
$claim$

-- name: reverse_from
-- Part of the claim's change of the journal: where a reverse begins. One change of the row needs no
-- new page on a full disk
, report = coalesce(report, '{{}}') || pg_catalog.jsonb_build_object({reverse_from}, began)
