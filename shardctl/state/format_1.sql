-- Schema shardctl, format 1. Changes come as format_2.sql and so on; this file never changes.

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
    made_at        timestamptz NOT NULL DEFAULT pg_catalog.now()
);
COMMENT ON COLUMN shardctl.cluster.identity IS 'Distinguishes this server from its clones.';
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
