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

-- name: map_version
-- The node's row, locked, unless its map is of a later move
SELECT map_version FROM shardctl.cluster WHERE map_version <= %(version)s FOR UPDATE
