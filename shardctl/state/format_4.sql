-- Schema shardctl, format 4: what a move says in its stream, and copies that refuse writes.
-- (To make a dropped table again, init takes the statements whose text names it first.)

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

ALTER TABLE shardctl.move_progress
    ADD COLUMN lag        bigint,
    ADD COLUMN wal        bigint,
    ADD COLUMN wal_limit  bigint,
    ADD COLUMN wal_left_s double precision;
COMMENT ON COLUMN shardctl.move_progress.lag IS 'Bytes of WAL that the target of a stream has not confirmed.';
COMMENT ON COLUMN shardctl.move_progress.wal IS 'Bytes of WAL that the source holds back for the move.';

UPDATE shardctl.cluster SET format = 4;
