-- name: is_needed
-- Whether this role is not a superuser
SELECT NOT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user

-- name: make
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

-- name: drop
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
