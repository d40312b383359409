-- Schema shardctl, format 5: rebalances, each a group of moves, and nodes that are to be empty;
-- rollouts of migrations in waves, and files that were stopped midway.
-- (To make a dropped table again, init takes the statements whose text names it first.)

-- Every node has every group: of several copies the one with the highest revision counts, and one
-- that has ended before all others. The moves are in the plan by their ids; how far each is, its
-- own journal knows.
CREATE TABLE shardctl.rebalance (
    id       text        PRIMARY KEY CHECK (id ~ '^[0-9a-f]{8}$'),
    revision bigint      NOT NULL,
    state    text        NOT NULL CHECK (state IN ('running', 'paused', 'done', 'aborted')),
    plan     jsonb       NOT NULL,
    who      text        NOT NULL,
    started  timestamptz NOT NULL,
    changed  timestamptz NOT NULL
);
COMMENT ON TABLE shardctl.rebalance IS 'Groups of moves that make the fleet even or a node empty.';

-- A cancelled drain keeps its row: nodes that were away have an older one.
CREATE TABLE shardctl.drain (
    node      text        PRIMARY KEY,
    revision  bigint      NOT NULL,
    is_active boolean     NOT NULL,
    who       text        NOT NULL,
    at        timestamptz NOT NULL
);
COMMENT ON TABLE shardctl.drain IS 'Nodes that rebalances give no shards to, and take all from.';

CREATE TABLE shardctl.rollout (
    id      text        PRIMARY KEY,
    serial  integer     NOT NULL,
    state   text        NOT NULL
            CHECK (state IN ('running', 'waiting', 'stopped', 'done', 'undone', 'abandoned')),
    files   jsonb       NOT NULL,
    waves   jsonb       NOT NULL,
    wave    integer     NOT NULL,
    options jsonb       NOT NULL,
    seen    jsonb       NOT NULL DEFAULT '{}',
    reason  text        NOT NULL DEFAULT '',
    who     text        NOT NULL,
    began   timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    changed timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
);
COMMENT ON TABLE shardctl.rollout IS 'Migrations that run in waves of shards: the same row on every node.';
COMMENT ON COLUMN shardctl.rollout.serial IS 'Grows with every change: of two nodes, the higher one is right.';
COMMENT ON COLUMN shardctl.rollout.files IS 'The SHA-256 of each file, which must not change between waves.';
COMMENT ON COLUMN shardctl.rollout.waves IS 'The shards of each wave, such as ["0,4", "1-3,5-7"].';
COMMENT ON COLUMN shardctl.rollout.wave IS 'The wave that began last, from 1.';
COMMENT ON COLUMN shardctl.rollout.seen IS 'Counters of the nodes and structures, as the last checks saw them.';

CREATE TABLE shardctl.migration_begun (
    shard     integer     NOT NULL,
    file      text        NOT NULL,
    checksum  text        NOT NULL,
    statement integer     NOT NULL,
    running   boolean     NOT NULL,
    at        timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    PRIMARY KEY (shard, file)
);
COMMENT ON TABLE shardctl.migration_begun IS 'The statement at which an unfinished file without a transaction is, in a shard.';
COMMENT ON COLUMN shardctl.migration_begun.statement IS 'Statements before this one, from 0, are done.';
COMMENT ON COLUMN shardctl.migration_begun.running IS 'False where that statement has failed.';

UPDATE shardctl.cluster SET format = 5;
