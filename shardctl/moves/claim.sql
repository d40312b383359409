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

-- name: drawn
-- The latest time, in ticks, of any id that the source has made
SELECT greatest((ceil(extract(epoch FROM clock_timestamp()) * 1000)::bigint - {epoch_ms}) / {tick_ms},
                max(pg_sequence_last_value(pg_catalog.format('%I.%I', n.nspname, {register}::text)::regclass)
                    & {time_mask}))
FROM shardctl.move AS m JOIN pg_namespace AS n ON n.nspname = ANY (m.retired)
WHERE m.id = {move}

-- name: pass
-- Wait until this server's clock shows more than that many ticks, a whole tick more
SELECT pg_sleep(greatest(0, ({not_before} + 1) * {tick_ms} + {epoch_ms}
                            - extract(epoch FROM clock_timestamp()) * 1000)::double precision / 1000)

-- name: raise
-- Raise new ids of the moved shards above that time: as `open`, when the target owns them
SELECT count(shardctl.open_block_at(
    pg_catalog.format('%I.%I', u.schema, {register}::text)::regclass,
    coalesce(pg_sequence_last_value(
        pg_catalog.format('%I.%I', u.schema, {counter}::text)::regclass), 0) >> {sequence_bits},
    {not_before}))
FROM shardctl.move AS m, LATERAL unnest(m.schemas) AS u (schema) WHERE m.id = {move}

-- name: sequences
-- Last values of the other sequences of the moved shards on the source
SELECT u.schema::text, c.relname::text, pg_sequence_last_value(s.seqrelid)
FROM shardctl.move AS m, LATERAL unnest(m.schemas, m.retired) AS u (schema, retired)
JOIN pg_namespace AS n ON n.nspname = u.retired
JOIN pg_class AS c ON c.relnamespace = n.oid
JOIN pg_sequence AS s ON s.seqrelid = c.oid
WHERE m.id = {move} AND c.relname NOT IN ({register}, {counter})
  AND CASE WHEN has_sequence_privilege(s.seqrelid, 'USAGE, SELECT')
           THEN pg_sequence_last_value(s.seqrelid) IS NOT NULL END

-- name: near_end
-- Sequences of these schemas, but for those of ids, that a server could run to their end by values
-- that it has only logged
SELECT s.seqrelid::bigint
FROM pg_sequence AS s
JOIN pg_class AS c ON c.oid = s.seqrelid
JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = ANY ({schemas}::name[]) AND c.relname NOT IN ({register}, {counter})
  AND CASE WHEN has_sequence_privilege(s.seqrelid, 'UPDATE')
            AND has_sequence_privilege(s.seqrelid, 'USAGE, SELECT')
           THEN {steps} * abs(s.seqincrement::numeric)
                > abs(CASE WHEN s.seqincrement > 0 THEN s.seqmax ELSE s.seqmin END::numeric
                      - coalesce(pg_sequence_last_value(s.seqrelid), s.seqstart)) END

-- name: log_exactly
-- Log the very value of these sequences behind the fence, with the commit of `drained`: what follows
-- by WAL would go on up to 32 values later. The record of the move is locked, and the fence up
SET LOCAL lock_timeout TO {lock_timeout};
SELECT count(setval(c.oid::regclass, pg_sequence_last_value(c.oid)))
FROM shardctl.move AS m
JOIN pg_namespace AS n ON n.nspname = ANY (m.retired)
JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relkind = 'S' AND c.oid = ANY ({sequences}::oid[])
WHERE m.id = {move} AND m.state = 'drained' AND m.revision = {drained};

-- name: advance
-- Bring the target's up to that, where they are behind
SELECT count(setval(s.seqrelid::regclass, u.last))
FROM unnest({schemas}::name[], {names}::name[], {lasts}::bigint[]) AS u (schema, name, last)
JOIN pg_namespace AS n ON n.nspname = u.schema
JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relname = u.name
JOIN pg_sequence AS s ON s.seqrelid = c.oid,
    LATERAL (SELECT CASE WHEN has_sequence_privilege(s.seqrelid, 'USAGE, SELECT')
                         THEN pg_sequence_last_value(s.seqrelid) END AS there) AS t
WHERE has_sequence_privilege(s.seqrelid, 'UPDATE')
  AND (t.there IS NULL OR CASE WHEN s.seqincrement > 0 THEN u.last > t.there
                               ELSE u.last < t.there END)
