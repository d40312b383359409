-- name: oid
-- The subscription of this database that has the name
SELECT s.oid::bigint FROM pg_catalog.pg_subscription AS s
JOIN pg_catalog.pg_database AS d ON d.oid = s.subdbid
WHERE s.subname = %(name)s AND d.datname = current_database()

-- name: create
-- Follow a publication from a slot that is there, without a copy
CREATE SUBSCRIPTION {name} CONNECTION {conninfo} PUBLICATION {name} WITH (
    copy_data = false, create_slot = false, slot_name = {slot}, enabled = false,
    disable_on_error = false, streaming = on, binary = false, synchronous_commit = off{more})

-- name: reconnect
-- Follow the same source at another address
ALTER SUBSCRIPTION {name} CONNECTION {conninfo}

-- name: advance
-- Let a disabled subscription begin at a position, unless its origin is beyond that already
SELECT pg_catalog.pg_replication_origin_advance('pg_' || s.oid, %(lsn)s::pg_lsn)
FROM pg_catalog.pg_subscription AS s
JOIN pg_catalog.pg_database AS d ON d.oid = s.subdbid AND d.datname = current_database()
WHERE s.subname = %(name)s AND NOT s.subenabled
  AND coalesce(pg_catalog.pg_replication_origin_progress('pg_' || s.oid, false), '0/0') < %(lsn)s::pg_lsn

-- name: enable
-- Let it follow
ALTER SUBSCRIPTION {name} ENABLE

-- name: drop
-- Drop it without a word to its source, whose slot stays
BEGIN;
SELECT pg_catalog.set_config('lock_timeout', {timeout}, true),
       pg_catalog.set_config('statement_timeout', {timeout}, true);
ALTER SUBSCRIPTION {name} DISABLE;
ALTER SUBSCRIPTION {name} SET (slot_name = NONE);
DROP SUBSCRIPTION {name};
COMMIT

-- name: state
-- What the target knows: whether it is enabled, and how often its worker failed
SELECT s.subenabled, coalesce(f.apply_error_count, 0)
FROM pg_catalog.pg_subscription AS s
JOIN pg_catalog.pg_database AS d ON d.oid = s.subdbid AND d.datname = current_database()
LEFT JOIN pg_catalog.pg_stat_subscription_stats AS f ON f.subid = s.oid
WHERE s.subname = %(name)s

-- name: sent
-- What the target has confirmed, as the source knows it
SELECT s.confirmed_flush_lsn::text
FROM pg_catalog.pg_replication_slots AS s WHERE s.slot_name = %(slot)s

-- name: needs_login
-- Whether this role is not a superuser
SELECT NOT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user

-- name: make_login
-- A role that may stream from here, whose sessions this role may end
DO $make$
DECLARE
    is_new boolean := NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = {name});
    super boolean := (SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user);
BEGIN
    EXECUTE pg_catalog.format('%s ROLE %I LOGIN REPLICATION PASSWORD %L',
                              CASE WHEN is_new THEN 'CREATE' ELSE 'ALTER' END, {name}, {verifier});
    IF NOT super THEN
        EXECUTE pg_catalog.format('GRANT %I TO CURRENT_USER WITH INHERIT TRUE, SET FALSE', {name});
    END IF;
    IF NOT pg_catalog.has_database_privilege({name}, current_database(), 'CONNECT') THEN
        EXECUTE pg_catalog.format('GRANT CONNECT ON DATABASE %I TO %I', current_database(), {name});
    END IF;
END
$make$

-- name: drop_login
-- Drop that role, if it is there
DO $drop$
BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = {name}) THEN
        EXECUTE pg_catalog.format('REVOKE ALL ON DATABASE %I FROM %I', current_database(), {name});
        EXECUTE pg_catalog.format('DROP ROLE %I', {name});
    END IF;
END
$drop$

-- name: table
-- A place for a text in this transaction
CREATE TEMPORARY TABLE shardctl_conninfo (text text) ON COMMIT DROP

-- name: copy
-- Put the text there
COPY pg_temp.shardctl_conninfo FROM STDIN

-- name: execute
-- Execute a statement with that text; an error must not show what was executed
DO $execute$
BEGIN
    EXECUTE pg_catalog.format({statement}, (SELECT text FROM pg_temp.shardctl_conninfo));
EXCEPTION WHEN OTHERS THEN
    RAISE EXCEPTION USING ERRCODE = SQLSTATE, MESSAGE = SQLERRM;
END
$execute$
