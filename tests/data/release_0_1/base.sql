


SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;


CREATE SCHEMA shard0;

CREATE SCHEMA shard1;

CREATE SCHEMA shard2;

CREATE SCHEMA shard3;

CREATE SCHEMA shardctl;

CREATE FUNCTION shard0.next_id() RETURNS bigint
    LANGUAGE sql
    AS $$SELECT shardctl.next_id('"shard0".next_id_seq'::pg_catalog.regclass, '"shard0".next_id_block'::pg_catalog.regclass, 0)$$;

CREATE FUNCTION shard1.next_id() RETURNS bigint
    LANGUAGE sql
    AS $$SELECT shardctl.next_id('"shard1".next_id_seq'::pg_catalog.regclass, '"shard1".next_id_block'::pg_catalog.regclass, 1)$$;

CREATE FUNCTION shard2.next_id() RETURNS bigint
    LANGUAGE sql
    AS $$SELECT shardctl.next_id('"shard2".next_id_seq'::pg_catalog.regclass, '"shard2".next_id_block'::pg_catalog.regclass, 2)$$;

CREATE FUNCTION shard3.next_id() RETURNS bigint
    LANGUAGE sql
    AS $$SELECT shardctl.next_id('"shard3".next_id_seq'::pg_catalog.regclass, '"shard3".next_id_block'::pg_catalog.regclass, 3)$$;

CREATE FUNCTION shardctl.id_floor(moment timestamp with time zone, shard integer DEFAULT 0) RETURNS bigint
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    AS $$
SELECT (((pg_catalog.floor(extract(epoch FROM pg_catalog.timezone('UTC', moment)) OPERATOR(pg_catalog.*) 1000)::bigint OPERATOR(pg_catalog.-) 1314220021721) OPERATOR(pg_catalog./) 1) OPERATOR(pg_catalog.*) 8388608) OPERATOR(pg_catalog.|) (shard::bigint OPERATOR(pg_catalog.<<) 10)
$$;

CREATE FUNCTION shardctl.id_sequence(id bigint) RETURNS bigint
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    AS $$
SELECT id OPERATOR(pg_catalog.&) 1023
$$;

CREATE FUNCTION shardctl.id_shard(id bigint) RETURNS integer
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    AS $$
SELECT ((id OPERATOR(pg_catalog.>>) 10) OPERATOR(pg_catalog.&) 8191)::integer
$$;

CREATE FUNCTION shardctl.id_time(id bigint) RETURNS timestamp with time zone
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    AS $$
SELECT pg_catalog.to_timestamp(((((id OPERATOR(pg_catalog.>>) 23) OPERATOR(pg_catalog.&) 2199023255551) OPERATOR(pg_catalog.*) 1) OPERATOR(pg_catalog.+) 1314220021721)::double precision OPERATOR(pg_catalog./) 1000)
$$;

CREATE FUNCTION shardctl.next_id(counter regclass, register regclass, shard integer) RETURNS bigint
    LANGUAGE plpgsql
    AS $$
DECLARE
    -- The order of these three is what keeps ids apart: the clock, then the draw, then the register.
    clock  bigint := pg_catalog.floor(pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000)::bigint OPERATOR(pg_catalog.-) 1314220021721;
    n      bigint := pg_catalog.nextval(counter);
    held   bigint := pg_catalog.pg_sequence_last_value(register);
BEGIN
    IF (held OPERATOR(pg_catalog.>>) 40) OPERATOR(pg_catalog.=) ((n OPERATOR(pg_catalog.>>) 10) OPERATOR(pg_catalog.&) 8388607)
        AND clock OPERATOR(pg_catalog.<=) 1099511627775 THEN
        RETURN ((greatest(clock, held OPERATOR(pg_catalog.&) 1099511627775) OPERATOR(pg_catalog.<<) 23) OPERATOR(pg_catalog.|) (shard::bigint OPERATOR(pg_catalog.<<) 10)) OPERATOR(pg_catalog.|) (n OPERATOR(pg_catalog.&) 1023);
    END IF;
    RETURN shardctl.next_id_of_new_block(counter, register, shard, clock, n);
END$$;

CREATE FUNCTION shardctl.next_id_of_new_block(counter regclass, register regclass, shard integer, clock bigint, n bigint) RETURNS bigint
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
-- Open n's block, or find it open; where it is over already, draw again.
DECLARE
    held  bigint;
BEGIN
    LOOP
        held := shardctl.open_block_at(register, n >> 10, NULL);
        IF held >> 40 = (n >> 10) & 8388607 THEN
            IF clock > 1099511627775 THEN
                RAISE EXCEPTION 'the ids of this layout are used up: their time has run out of bits'
                USING ERRCODE = 'sequence_generator_limit_exceeded';
            END IF;
            RETURN ((greatest(clock, held & 1099511627775) OPERATOR(pg_catalog.<<) 23) OPERATOR(pg_catalog.|) (shard::bigint OPERATOR(pg_catalog.<<) 10)) OPERATOR(pg_catalog.|) (n OPERATOR(pg_catalog.&) 1023);
        END IF;
        clock := pg_catalog.floor(pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000)::bigint OPERATOR(pg_catalog.-) 1314220021721;
        n := nextval(counter);
    END LOOP;
END
$$;

CREATE FUNCTION shardctl.open_block(shard integer, not_before timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS timestamp with time zone
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
-- From now on, make every id of the shard with a time above the clock's, above that of every
-- earlier id, and above not_before. Returns that time.
DECLARE
    home  name := (SELECT m.schema FROM shardctl.map AS m WHERE m.shard = open_block.shard);
    drawn bigint;
    held  bigint;
BEGIN
    IF home IS NULL THEN
        RAISE EXCEPTION 'shard % is not in shardctl.map', shard USING ERRCODE = 'undefined_object';
    END IF;
    drawn := coalesce(pg_sequence_last_value(format('%I.next_id_seq', home)::regclass), 0);
    held := shardctl.open_block_at(
        format('%I.next_id_block', home)::regclass,
        drawn >> 10,
        coalesce((ceil(extract(epoch FROM not_before) * 1000)::bigint - 1314220021721) / 1, 0));
    RETURN shardctl.id_time((held & 1099511627775) << 23);
END
$$;

CREATE FUNCTION shardctl.open_block_at(register regclass, block bigint, not_before bigint) RETURNS bigint
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
-- Bring the register up to block where it is behind, at a time above the clock's and its own.
-- With not_before (in ticks), also raise the time of a block that is open, above that as well.
-- Returns what the register then holds: block number << 40 | time.
--
-- Registers are written under an advisory lock only, so they never go back. The lock is taken
-- in a subtransaction that always ends in a rollback. That frees it at once, however long the
-- transaction lasts and even if the session is cancelled or dies here; setval() is not undone.
DECLARE
    held    bigint;
    opened  bigint;
BEGIN
    BEGIN
        PERFORM pg_advisory_xact_lock(5942557, register::oid::integer);
        held := coalesce(
            pg_sequence_last_value(register), -- null: nothing is open yet, as if it were the block before
            ((block - 1) & 8388607) << 40);
        -- Block numbers wrap around: up to half of them lie ahead, the others behind.
        IF (block - (held >> 40)) & 8388607 BETWEEN 1 AND 4194303 THEN
            held := ((block & 8388607) << 40) | (held & 1099511627775);
        ELSIF not_before IS NULL THEN
            RAISE SQLSTATE 'SH001';
        END IF;
        opened := greatest(pg_catalog.floor(pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000)::bigint OPERATOR(pg_catalog.-) 1314220021721, held & 1099511627775, not_before) + 1;
        IF opened > 1099511627775 THEN
            RAISE EXCEPTION 'the ids of this layout are used up: their time has run out of bits'
                USING ERRCODE = 'sequence_generator_limit_exceeded';
        END IF;
        held := ((held >> 40) << 40) | opened;
        PERFORM setval(register, held);
        RAISE SQLSTATE 'SH001';
    EXCEPTION WHEN SQLSTATE 'SH001' THEN
        RETURN held;
    END;
END
$$;

CREATE FUNCTION shardctl.shard_of(key smallint) RETURNS integer
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    AS $$
SELECT (((key::bigint OPERATOR(pg_catalog.%) 4) OPERATOR(pg_catalog.+) 4) OPERATOR(pg_catalog.%) 4)::integer
$$;

CREATE FUNCTION shardctl.shard_of(key integer) RETURNS integer
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    AS $$
SELECT (((key::bigint OPERATOR(pg_catalog.%) 4) OPERATOR(pg_catalog.+) 4) OPERATOR(pg_catalog.%) 4)::integer
$$;

CREATE FUNCTION shardctl.shard_of(key bigint) RETURNS integer
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    AS $$
SELECT (((key::bigint OPERATOR(pg_catalog.%) 4) OPERATOR(pg_catalog.+) 4) OPERATOR(pg_catalog.%) 4)::integer
$$;

CREATE FUNCTION shardctl.shard_of(key numeric) RETURNS integer
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
SELECT CASE WHEN key OPERATOR(pg_catalog.=) pg_catalog.trunc(key) THEN
    (((key OPERATOR(pg_catalog.%) 4) OPERATOR(pg_catalog.+) 4) OPERATOR(pg_catalog.%) 4)::integer
ELSE key::pg_catalog.text::bigint::integer END
$$;

CREATE FUNCTION shardctl.shard_of(key text) RETURNS integer
    LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
    AS $$
BEGIN
    RETURN (('x' OPERATOR(pg_catalog.||) pg_catalog.left(pg_catalog.encode(pg_catalog.sha256(pg_catalog.convert_to(key, 'UTF8')), 'hex'), 15))::bit(60)::bigint OPERATOR(pg_catalog.%) 4)::integer;
END
$$;

CREATE FUNCTION shardctl.shard_of(key uuid) RETURNS integer
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    AS $$
SELECT (('x' OPERATOR(pg_catalog.||) pg_catalog.left(pg_catalog.encode(pg_catalog.sha256(pg_catalog.decode(key::pg_catalog.text, 'escape')), 'hex'), 15))::bit(60)::bigint OPERATOR(pg_catalog.%) 4)::integer
$$;

CREATE SEQUENCE shard0.next_id_block
    START WITH 0
    INCREMENT BY 1
    MINVALUE 0
    NO MAXVALUE
    CACHE 1;

CREATE SEQUENCE shard0.next_id_seq
    START WITH 0
    INCREMENT BY 1
    MINVALUE 0
    NO MAXVALUE
    CACHE 1;
SET default_tablespace = '';

SET default_table_access_method = heap;


CREATE TABLE shard0.photos (
    id bigint DEFAULT shard0.next_id() NOT NULL,
    user_id bigint NOT NULL
);

CREATE SEQUENCE shard1.next_id_block
    START WITH 0
    INCREMENT BY 1
    MINVALUE 0
    NO MAXVALUE
    CACHE 1;

CREATE SEQUENCE shard1.next_id_seq
    START WITH 0
    INCREMENT BY 1
    MINVALUE 0
    NO MAXVALUE
    CACHE 1;

CREATE TABLE shard1.photos (
    id bigint DEFAULT shard1.next_id() NOT NULL,
    user_id bigint NOT NULL
);

CREATE SEQUENCE shard2.next_id_block
    START WITH 0
    INCREMENT BY 1
    MINVALUE 0
    NO MAXVALUE
    CACHE 1;

CREATE SEQUENCE shard2.next_id_seq
    START WITH 0
    INCREMENT BY 1
    MINVALUE 0
    NO MAXVALUE
    CACHE 1;

CREATE TABLE shard2.photos (
    id bigint DEFAULT shard2.next_id() NOT NULL,
    user_id bigint NOT NULL
);

CREATE SEQUENCE shard3.next_id_block
    START WITH 0
    INCREMENT BY 1
    MINVALUE 0
    NO MAXVALUE
    CACHE 1;

CREATE SEQUENCE shard3.next_id_seq
    START WITH 0
    INCREMENT BY 1
    MINVALUE 0
    NO MAXVALUE
    CACHE 1;

CREATE TABLE shard3.photos (
    id bigint DEFAULT shard3.next_id() NOT NULL,
    user_id bigint NOT NULL
);

CREATE TABLE shardctl.cluster (
    only_row boolean DEFAULT true NOT NULL,
    format integer NOT NULL,
    cluster text NOT NULL,
    node text NOT NULL,
    identity uuid DEFAULT gen_random_uuid() NOT NULL,
    shard_count integer NOT NULL,
    schema_pattern text NOT NULL,
    epoch_ms bigint NOT NULL,
    tick_ms bigint NOT NULL,
    time_bits integer NOT NULL,
    shard_bits integer NOT NULL,
    sequence_bits integer NOT NULL,
    generator text NOT NULL,
    map_version bigint NOT NULL,
    made_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT cluster_only_row_check CHECK (only_row)
);

CREATE TABLE shardctl.event (
    id bigint NOT NULL,
    at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    who text NOT NULL,
    command text NOT NULL,
    result text NOT NULL
);

ALTER TABLE shardctl.event ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME shardctl.event_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE shardctl.map (
    shard integer NOT NULL,
    schema name NOT NULL,
    node text NOT NULL
);

CREATE TABLE shardctl.migration (
    shard integer NOT NULL,
    file text NOT NULL,
    checksum text NOT NULL,
    ran_at timestamp with time zone DEFAULT now() NOT NULL
);

CREATE TABLE shardctl.move (
    id text NOT NULL,
    revision bigint DEFAULT 1 NOT NULL,
    state text NOT NULL,
    method text NOT NULL,
    source text NOT NULL,
    target text NOT NULL,
    shards integer[] NOT NULL,
    schemas name[] NOT NULL,
    retired name[] NOT NULL,
    plan jsonb NOT NULL,
    who text NOT NULL,
    started timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    changed timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    ended timestamp with time zone,
    drained_at timestamp with time zone,
    drained_to pg_lsn,
    proof text,
    report jsonb,
    CONSTRAINT move_check CHECK ((cardinality(shards) = cardinality(schemas))),
    CONSTRAINT move_check1 CHECK ((cardinality(shards) = cardinality(retired))),
    CONSTRAINT move_id_check CHECK ((id ~ '^[0-9a-f]{8}$'::text)),
    CONSTRAINT move_state_check CHECK ((state = ANY (ARRAY['reserved'::text, 'undone'::text, 'fenced'::text, 'drained'::text, 'promoting'::text, 'claimed'::text, 'routed'::text, 'unconfirmed'::text, 'done'::text, 'aborted'::text])))
);

CREATE TABLE shardctl.move_step (
    move text NOT NULL,
    step text NOT NULL,
    state text NOT NULL,
    started timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    took_ms double precision,
    error text,
    CONSTRAINT move_step_state_check CHECK ((state = ANY (ARRAY['running'::text, 'done'::text, 'failed'::text, 'undone'::text])))
);



INSERT INTO shard2.photos (id, user_id) VALUES (4036242573033998336, 2);

INSERT INTO shard3.photos (id, user_id) VALUES (4036242574225181696, 3);

INSERT INTO shardctl.cluster (only_row, format, cluster, node, identity, shard_count, schema_pattern, epoch_ms, tick_ms, time_bits, shard_bits, sequence_bits, generator, map_version, made_at) VALUES (true, 2, 'lab', 'a', '503c23e2-e62c-495f-92fa-6ecc1a09c171', 4, 'shard{id}', 1314220021721, 1, 41, 13, 10, 'strict', 1, '2026-11-22 20:00:30.320656+00');

INSERT INTO shardctl.event (id, at, who, command, result) OVERRIDING SYSTEM VALUE VALUES (1, '2026-11-22 20:00:30.400387+00', 'ann@ops1', 'init', 'begun');
INSERT INTO shardctl.event (id, at, who, command, result) OVERRIDING SYSTEM VALUE VALUES (2, '2026-11-22 20:00:30.724808+00', 'ann@ops1', 'init', 'done');
INSERT INTO shardctl.event (id, at, who, command, result) OVERRIDING SYSTEM VALUE VALUES (3, '2026-11-22 20:00:30.798153+00', 'ann@ops1', 'init', 'map version 1');
INSERT INTO shardctl.event (id, at, who, command, result) OVERRIDING SYSTEM VALUE VALUES (4, '2026-11-22 20:00:31.240865+00', 'ann@ops1', 'init', 'pooler p1: map version 1');

INSERT INTO shardctl.map (shard, schema, node) VALUES (0, 'shard0', 'a');
INSERT INTO shardctl.map (shard, schema, node) VALUES (1, 'shard1', 'a');
INSERT INTO shardctl.map (shard, schema, node) VALUES (2, 'shard2', 'a');
INSERT INTO shardctl.map (shard, schema, node) VALUES (3, 'shard3', 'a');

INSERT INTO shardctl.migration (shard, file, checksum, ran_at) VALUES (0, '0001_photos.sql', '43368ee7682368881b719b5a896f8acdaaa8290b378e15438a80b20b6ea2f9de', '2026-11-22 20:00:30.568422+00');
INSERT INTO shardctl.migration (shard, file, checksum, ran_at) VALUES (1, '0001_photos.sql', '43368ee7682368881b719b5a896f8acdaaa8290b378e15438a80b20b6ea2f9de', '2026-11-22 20:00:30.633573+00');
INSERT INTO shardctl.migration (shard, file, checksum, ran_at) VALUES (2, '0001_photos.sql', '43368ee7682368881b719b5a896f8acdaaa8290b378e15438a80b20b6ea2f9de', '2026-11-22 20:00:30.633573+00');
INSERT INTO shardctl.migration (shard, file, checksum, ran_at) VALUES (3, '0001_photos.sql', '43368ee7682368881b719b5a896f8acdaaa8290b378e15438a80b20b6ea2f9de', '2026-11-22 20:00:30.633573+00');



SELECT pg_catalog.setval('shard0.next_id_block', 0, false);

SELECT pg_catalog.setval('shard0.next_id_seq', 0, false);

SELECT pg_catalog.setval('shard1.next_id_block', 0, false);

SELECT pg_catalog.setval('shard1.next_id_seq', 0, false);

SELECT pg_catalog.setval('shard2.next_id_block', 481157609586, true);

SELECT pg_catalog.setval('shard2.next_id_seq', 0, true);

SELECT pg_catalog.setval('shard3.next_id_block', 481157609728, true);

SELECT pg_catalog.setval('shard3.next_id_seq', 0, true);

SELECT pg_catalog.setval('shardctl.event_id_seq', 4, true);

ALTER TABLE ONLY shard0.photos
    ADD CONSTRAINT photos_pkey PRIMARY KEY (id);

ALTER TABLE ONLY shard1.photos
    ADD CONSTRAINT photos_pkey PRIMARY KEY (id);

ALTER TABLE ONLY shard2.photos
    ADD CONSTRAINT photos_pkey PRIMARY KEY (id);

ALTER TABLE ONLY shard3.photos
    ADD CONSTRAINT photos_pkey PRIMARY KEY (id);

ALTER TABLE ONLY shardctl.cluster
    ADD CONSTRAINT cluster_pkey PRIMARY KEY (only_row);

ALTER TABLE ONLY shardctl.event
    ADD CONSTRAINT event_pkey PRIMARY KEY (id);

ALTER TABLE ONLY shardctl.map
    ADD CONSTRAINT map_pkey PRIMARY KEY (shard);

ALTER TABLE ONLY shardctl.migration
    ADD CONSTRAINT migration_pkey PRIMARY KEY (shard, file);

ALTER TABLE ONLY shardctl.move
    ADD CONSTRAINT move_pkey PRIMARY KEY (id);

ALTER TABLE ONLY shardctl.move_step
    ADD CONSTRAINT move_step_pkey PRIMARY KEY (move, step);

CREATE UNIQUE INDEX move_unfinished ON shardctl.move USING btree ((true)) WHERE (state <> ALL (ARRAY['done'::text, 'aborted'::text, 'unconfirmed'::text]));

ALTER TABLE ONLY shardctl.move_step
    ADD CONSTRAINT move_step_move_fkey FOREIGN KEY (move) REFERENCES shardctl.move(id) ON DELETE CASCADE;

GRANT USAGE ON SCHEMA shard0 TO app;

GRANT USAGE ON SCHEMA shard1 TO app;

GRANT USAGE ON SCHEMA shard2 TO app;

GRANT USAGE ON SCHEMA shard3 TO app;

GRANT USAGE ON SCHEMA shardctl TO app;

GRANT ALL ON FUNCTION shard0.next_id() TO app;

GRANT ALL ON FUNCTION shard1.next_id() TO app;

GRANT ALL ON FUNCTION shard2.next_id() TO app;

GRANT ALL ON FUNCTION shard3.next_id() TO app;

GRANT ALL ON FUNCTION shardctl.id_floor(moment timestamp with time zone, shard integer) TO app;

GRANT ALL ON FUNCTION shardctl.id_sequence(id bigint) TO app;

GRANT ALL ON FUNCTION shardctl.id_shard(id bigint) TO app;

GRANT ALL ON FUNCTION shardctl.id_time(id bigint) TO app;

GRANT ALL ON FUNCTION shardctl.next_id(counter regclass, register regclass, shard integer) TO app;

GRANT ALL ON FUNCTION shardctl.next_id_of_new_block(counter regclass, register regclass, shard integer, clock bigint, n bigint) TO app;

GRANT ALL ON FUNCTION shardctl.open_block(shard integer, not_before timestamp with time zone) TO app;

GRANT ALL ON FUNCTION shardctl.open_block_at(register regclass, block bigint, not_before bigint) TO app;

GRANT ALL ON FUNCTION shardctl.shard_of(key smallint) TO app;

GRANT ALL ON FUNCTION shardctl.shard_of(key integer) TO app;

GRANT ALL ON FUNCTION shardctl.shard_of(key bigint) TO app;

GRANT ALL ON FUNCTION shardctl.shard_of(key numeric) TO app;

GRANT ALL ON FUNCTION shardctl.shard_of(key text) TO app;

GRANT ALL ON FUNCTION shardctl.shard_of(key uuid) TO app;

GRANT ALL ON SEQUENCE shard0.next_id_block TO app;

GRANT ALL ON SEQUENCE shard0.next_id_seq TO app;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE shard0.photos TO app;

GRANT ALL ON SEQUENCE shard1.next_id_block TO app;

GRANT ALL ON SEQUENCE shard1.next_id_seq TO app;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE shard1.photos TO app;

GRANT ALL ON SEQUENCE shard2.next_id_block TO app;

GRANT ALL ON SEQUENCE shard2.next_id_seq TO app;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE shard2.photos TO app;

GRANT ALL ON SEQUENCE shard3.next_id_block TO app;

GRANT ALL ON SEQUENCE shard3.next_id_seq TO app;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE shard3.photos TO app;

GRANT SELECT ON TABLE shardctl.cluster TO app;

GRANT SELECT ON TABLE shardctl.map TO app;

ALTER DEFAULT PRIVILEGES FOR ROLE postgres IN SCHEMA shard0 GRANT ALL ON SEQUENCES  TO app;

ALTER DEFAULT PRIVILEGES FOR ROLE postgres IN SCHEMA shard0 GRANT SELECT,INSERT,DELETE,UPDATE ON TABLES  TO app;

ALTER DEFAULT PRIVILEGES FOR ROLE postgres IN SCHEMA shard1 GRANT ALL ON SEQUENCES  TO app;

ALTER DEFAULT PRIVILEGES FOR ROLE postgres IN SCHEMA shard1 GRANT SELECT,INSERT,DELETE,UPDATE ON TABLES  TO app;

ALTER DEFAULT PRIVILEGES FOR ROLE postgres IN SCHEMA shard2 GRANT ALL ON SEQUENCES  TO app;

ALTER DEFAULT PRIVILEGES FOR ROLE postgres IN SCHEMA shard2 GRANT SELECT,INSERT,DELETE,UPDATE ON TABLES  TO app;

ALTER DEFAULT PRIVILEGES FOR ROLE postgres IN SCHEMA shard3 GRANT ALL ON SEQUENCES  TO app;

ALTER DEFAULT PRIVILEGES FOR ROLE postgres IN SCHEMA shard3 GRANT SELECT,INSERT,DELETE,UPDATE ON TABLES  TO app;


