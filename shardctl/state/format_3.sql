-- Schema shardctl, format 3: the progress of a copy, and room for several moves and for reverses.
-- (To make a dropped table again, init takes the statements whose text names it first.)

-- A table of its own, which does not refer to that of moves: guards decide by a move's row, and
-- nothing that is written often may touch or lock that.
CREATE TABLE shardctl.move_progress (
    move  text             PRIMARY KEY,
    phase text             NOT NULL,
    bytes bigint           NOT NULL,
    total bigint,
    rate  double precision,
    eta_s double precision,
    at    timestamptz      NOT NULL DEFAULT pg_catalog.clock_timestamp()
);
COMMENT ON TABLE shardctl.move_progress IS 'The progress of each move''s copy; no decision depends on it.';
COMMENT ON COLUMN shardctl.move_progress.rate IS 'Bytes a second, over the last seconds.';

ALTER TABLE shardctl.move ADD COLUMN reverses text REFERENCES shardctl.move;
COMMENT ON COLUMN shardctl.move.reverses IS 'The move whose shards this one gives back.';

CREATE FUNCTION shardctl.shard_set(shards integer[]) RETURNS int4multirange
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN (SELECT pg_catalog.range_agg(pg_catalog.int4range(s, s, '[]'))
        FROM pg_catalog.unnest(shards) AS s);

-- A shard has one unfinished move; a reverse begins when what it reverses is over.
ALTER TABLE shardctl.move ADD CONSTRAINT move_of_shard
    EXCLUDE USING gist (shardctl.shard_set(shards) WITH &&)
    WHERE (state NOT IN ('done', 'aborted', 'unconfirmed'));

-- A clone takes the whole server and its shardctl.move along: there is one at a time.
CREATE UNIQUE INDEX move_cloning ON shardctl.move (method)
    WHERE method = 'clone' AND state NOT IN ('done', 'aborted', 'unconfirmed');

-- Those two replace this index on shardctl.move, which allowed one unfinished move of any kind.
DROP INDEX shardctl.move_unfinished;

UPDATE shardctl.cluster SET format = 3;
