-- Schema shardctl, format 2: the journal of moves. It is cloned with the node, so that shardctl with
-- one of the two nodes can show a move's last state.

CREATE TABLE shardctl.move (
    id         text        PRIMARY KEY CHECK (id ~ '^[0-9a-f]{8}$'),
    revision   bigint      NOT NULL DEFAULT 1,
    state      text        NOT NULL CHECK (state IN (
                   'reserved', 'undone', 'fenced', 'drained', 'promoting', 'claimed', 'routed',
                   'unconfirmed', 'done', 'aborted')),
    method     text        NOT NULL,
    source     text        NOT NULL,
    target     text        NOT NULL,
    shards     integer[]   NOT NULL,
    schemas    name[]      NOT NULL,
    retired    name[]      NOT NULL,
    plan       jsonb       NOT NULL,
    who        text        NOT NULL,
    started    timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    changed    timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    ended      timestamptz,
    drained_at timestamptz,
    drained_to pg_lsn,
    proof      text,
    report     jsonb,
    CHECK (cardinality(shards) = cardinality(schemas)),
    CHECK (cardinality(shards) = cardinality(retired))
);
COMMENT ON TABLE shardctl.move IS 'The journal of moves: the plan of each, and its state.';
COMMENT ON COLUMN shardctl.move.revision IS 'Every change raises it: of two copies the higher is the newer.';
COMMENT ON COLUMN shardctl.move.drained_at IS 'The source''s clock when no write could come any more.';
COMMENT ON COLUMN shardctl.move.drained_to IS 'Up to here the target has to have replayed.';

-- One at a time in a cluster; this keeps two from beginning on one node.
CREATE UNIQUE INDEX move_unfinished ON shardctl.move ((true)) WHERE state NOT IN ('done', 'aborted', 'unconfirmed');

CREATE TABLE shardctl.move_step (
    move    text             NOT NULL REFERENCES shardctl.move ON DELETE CASCADE,
    step    text             NOT NULL,
    state   text             NOT NULL CHECK (state IN ('running', 'done', 'failed', 'undone')),
    started timestamptz      NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    took_ms double precision,
    error   text,
    PRIMARY KEY (move, step)
);
COMMENT ON TABLE shardctl.move_step IS 'The steps of each move as they last ran.';

UPDATE shardctl.cluster SET format = 2;
