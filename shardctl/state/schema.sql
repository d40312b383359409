-- Schema shardctl: what shardctl keeps in every node's database.

CREATE SCHEMA shardctl;
COMMENT ON SCHEMA shardctl IS 'What shardctl knows of this cluster; see its docs/topology.md.';

CREATE TABLE shardctl.cluster (
    only_row       boolean     PRIMARY KEY DEFAULT true CHECK (only_row),
    format         integer     NOT NULL,
    cluster        text        NOT NULL,
    node           text        NOT NULL,
    identity       uuid        NOT NULL DEFAULT pg_catalog.gen_random_uuid(),
    shard_count    integer     NOT NULL,
    schema_pattern text        NOT NULL,
    epoch_ms       bigint      NOT NULL,
    tick_ms        bigint      NOT NULL,
    time_bits      integer     NOT NULL,
    shard_bits     integer     NOT NULL,
    sequence_bits  integer     NOT NULL,
    generator      text        NOT NULL,
    map_version    bigint      NOT NULL,
    key_rule       text        NOT NULL,
    made_at        timestamptz NOT NULL DEFAULT pg_catalog.now()
);
COMMENT ON COLUMN shardctl.cluster.identity IS 'Distinguishes this server from its clones.';
COMMENT ON COLUMN shardctl.cluster.key_rule IS 'modulo: by its remainder; id: an integer key is an id, and its bits name the shard.';
COMMENT ON COLUMN shardctl.cluster.map_version IS '0 until the whole map has been written; it only grows.';

CREATE TABLE shardctl.map (
    shard  integer PRIMARY KEY,
    schema name    NOT NULL,
    node   text    NOT NULL
);
COMMENT ON TABLE shardctl.map IS 'Which node owns which shard: the whole cluster, on every node.';

CREATE TABLE shardctl.migration (
    shard    integer     NOT NULL,
    file     text        NOT NULL,
    checksum text        NOT NULL,
    ran_at   timestamptz NOT NULL DEFAULT pg_catalog.now(),
    PRIMARY KEY (shard, file)
);
COMMENT ON TABLE shardctl.migration IS 'Which file, with which SHA-256, ran in which shard.';

CREATE TABLE shardctl.event (
    id      bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at      timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    who     text        NOT NULL,
    command text        NOT NULL,
    result  text        NOT NULL
);
COMMENT ON TABLE shardctl.event IS 'The audit trail: every change shardctl made to this node.';

CREATE FUNCTION shardctl.shard_set(shards integer[]) RETURNS int4multirange
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN (SELECT pg_catalog.range_agg(pg_catalog.int4range(s, s, '[]'))
        FROM pg_catalog.unnest(shards) AS s);

-- It is cloned with the node, so that shardctl with one of the two nodes can show a move's last
-- state.
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
    CHECK (cardinality(shards) = cardinality(retired)),
    -- A shard has one unfinished move; a reverse begins when what it reverses is over.
    CONSTRAINT move_of_shard EXCLUDE USING gist (shardctl.shard_set(shards) WITH &&)
        WHERE (state NOT IN ('done', 'aborted', 'unconfirmed'))
);
COMMENT ON TABLE shardctl.move IS 'The journal of moves: the plan of each, and its state.';
COMMENT ON COLUMN shardctl.move.revision IS 'Every change raises it: of two copies the higher is the newer.';
COMMENT ON COLUMN shardctl.move.drained_at IS 'The source''s clock when no write could come any more.';
COMMENT ON COLUMN shardctl.move.drained_to IS 'Up to here the target has to have replayed.';

-- A clone takes the whole server and its shardctl.move along: there is one at a time.
CREATE UNIQUE INDEX move_cloning ON shardctl.move (method)
    WHERE method = 'clone' AND state NOT IN ('done', 'aborted', 'unconfirmed');

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

-- A table of its own, which does not refer to that of moves: guards decide by a move's row, and
-- nothing that is written often may touch or lock that.
CREATE TABLE shardctl.move_progress (
    move       text             PRIMARY KEY,
    phase      text             NOT NULL,
    bytes      bigint           NOT NULL,
    total      bigint,
    rate       double precision,
    eta_s      double precision,
    at         timestamptz      NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    lag        bigint,
    wal        bigint,
    wal_limit  bigint
);
COMMENT ON TABLE shardctl.move_progress IS 'The progress of each move''s copy; no decision depends on it.';
COMMENT ON COLUMN shardctl.move_progress.rate IS 'Bytes a second, over the last seconds.';
COMMENT ON COLUMN shardctl.move_progress.lag IS 'Bytes of WAL that the target of a stream has not confirmed.';
COMMENT ON COLUMN shardctl.move_progress.wal IS 'Bytes of WAL that the source holds back for the move.';

-- Every publication of a move has this table, with the rows of that move alone: what the source
-- writes here arrives at the target behind all rows that were committed before it.
CREATE TABLE shardctl.stream (
    move    text        NOT NULL,
    attempt integer     NOT NULL,
    what    text        NOT NULL,
    at      timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    note    jsonb,
    PRIMARY KEY (move, attempt, what)
);
COMMENT ON TABLE shardctl.stream IS 'Marks that moves put into their streams, such as their decision.';
COMMENT ON COLUMN shardctl.stream.attempt IS 'A rehearsal and a cutover can be repeated.';

CREATE TABLE shardctl.stream_copy (
    move    text    PRIMARY KEY,
    is_open boolean NOT NULL DEFAULT false
);
COMMENT ON TABLE shardctl.stream_copy IS 'Whether the shards that a move has copied here accept writes.';

-- The triggers on such copies call this; their arguments are the shard's schema and its move.
-- Opening is an UPDATE: to drop a trigger means to wait for every reader. Applications have no
-- right to the table, so the function reads it as its owner.
CREATE FUNCTION shardctl.refuse_write_to_copy() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $refuse_write_to_copy$
BEGIN
    IF EXISTS (SELECT FROM shardctl.stream_copy WHERE move = TG_ARGV[1] AND is_open) THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION '% on table %.% is refused: this node does not own its shard',
                    TG_OP, TG_TABLE_SCHEMA, TG_TABLE_NAME
        USING ERRCODE = 'read_only_sql_transaction',
              DETAIL = 'It is a copy for move ' || TG_ARGV[1] || ' of schema ' || TG_ARGV[0] || '.',
              HINT = 'An operator sees more: shardctl moves show ' || TG_ARGV[1];
END
$refuse_write_to_copy$;
