-- name: fence
-- Take moved schemas' names away, and do something first, at once
BEGIN;
DO $fence$
DECLARE
    one record;
BEGIN
    -- A rename takes no table's lock. Some releases of PostgreSQL let it wait for what is made in
    -- the schema and not committed, other sessions do not: `making` finds that afterwards.
    {first}
    {renaming}
END
$fence$;
COMMIT

-- name: to_fenced
-- Part of other queries: record in the journal that the fence is up, in the transaction that puts it up
PERFORM pg_catalog.set_config('lock_timeout', {lock_timeout}, true);
-- A standby that does not answer must not hold up the commit: the fence would be up already.
PERFORM pg_catalog.set_config('synchronous_commit', 'local', true);
UPDATE shardctl.move
SET state = 'fenced', revision = revision + 1, changed = pg_catalog.clock_timestamp()
WHERE id = {move} AND state IN ('reserved', 'undone') AND revision = {revision};
IF NOT FOUND THEN
    -- Another session has aborted this attempt: what wakes up late, or arrives late, does nothing.
    RAISE EXCEPTION 'move % is not at its cutover', {move} USING ERRCODE = 'SH002';
END IF;

-- name: renaming
-- Part of other queries: take moved schemas' names away, unless it is too late; `one` is a record
FOR one IN
    SELECT u.schema, u.retired
    FROM shardctl.move AS m, LATERAL unnest(m.schemas, m.retired) AS u (schema, retired)
    WHERE m.id = {move} AND {wanted}
LOOP
    EXECUTE pg_catalog.format('ALTER SCHEMA %I RENAME TO %I', one.schema, one.retired);
END LOOP;
IF pg_catalog.clock_timestamp() > {not_after} THEN
    -- This server hung, and its clients are served again or are about to be.
    RAISE EXCEPTION 'move % is too late', {move} USING ERRCODE = 'SH003';
END IF;

-- name: has_name
-- Part of that: a schema has its name, and not another, which a client has made behind the fence
EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = u.schema)
AND NOT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = u.retired)

-- name: names_back
-- Part of other queries: give moved schemas that have lost their names those back; `one` is a record
FOR one IN
    SELECT u.schema, u.retired
    FROM shardctl.move AS m, LATERAL unnest(m.schemas, m.retired) AS u (schema, retired)
    JOIN pg_catalog.pg_namespace AS n ON n.nspname = u.retired
    WHERE m.id = {move}
LOOP
    IF EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = one.schema) THEN
        -- A client did not find it, and has made another: that keeps what it has.
        EXECUTE pg_catalog.format('ALTER SCHEMA %I RENAME TO %I', one.schema,
                                  pg_catalog.left(one.schema, 40) || '__behind_' || {move});
        RAISE WARNING 'schema % was made behind the fence, and renamed', one.schema;
    END IF;
    EXECUTE pg_catalog.format('ALTER SCHEMA %I RENAME TO %I', one.retired, one.schema);
END LOOP;

-- name: lift
-- Undo the fence unless the move is past its point of no return; after a sleep, as the guard does.
-- One that is not up yet is undone, too: the raised revision keeps it from coming afterwards.
DO $lift$
DECLARE
    one    record;
    before text;
    tries  integer := 0;
BEGIN
    PERFORM pg_catalog.pg_sleep({seconds});
    PERFORM pg_catalog.set_config('synchronous_commit', 'local', true);
    PERFORM pg_catalog.set_config('lock_timeout', {lock_timeout}, true);
    LOOP
        BEGIN
            -- The first of them, this or `promoting`, has the row; the other finds it changed.
            -- A fence whose answer was lost may be at work yet: then this waits for it.
            SELECT m.state INTO before FROM shardctl.move AS m
            WHERE m.id = {move} AND m.state IN ('reserved', 'undone', 'fenced', 'drained')
              -- NULL: whichever attempt it is; else the one that began at this revision.
              AND coalesce(m.revision - CASE m.state WHEN 'fenced' THEN 1 WHEN 'drained' THEN 2
                                        ELSE 0 END = {revision}, true)
            FOR UPDATE;
            IF FOUND THEN
                UPDATE shardctl.move
                SET state = 'undone', revision = revision + 1,
                    changed = pg_catalog.clock_timestamp()
                WHERE id = {move};
            END IF;
            IF before IN ('fenced', 'drained') THEN
                {names_back}
            END IF;
            EXIT;
        EXCEPTION WHEN lock_not_available OR internal_error OR deadlock_detected THEN
            -- DDL in a schema, or a GRANT at the same moment: clients wait for this, so again.
            tries := tries + 1;
            IF tries >= {tries} THEN
                RAISE;
            END IF;
            PERFORM pg_catalog.pg_sleep(0.02);
        END;
    END LOOP;
END
$lift$

-- name: decided
-- Part of other queries: see that a move is past its decision, and keep it where it is
PERFORM pg_catalog.set_config('lock_timeout', {lock_timeout}, true);
PERFORM pg_catalog.set_config('synchronous_commit', 'local', true);
PERFORM FROM shardctl.move WHERE id = {move} AND state IN ('promoting', 'claimed') FOR UPDATE;
IF NOT FOUND THEN -- or long past it: the names may belong to what a later move has brought
    RAISE EXCEPTION 'move % is not past its point of no return', {move} USING ERRCODE = 'SH002';
END IF;

-- name: schemas
-- Part of other queries: the names that the schemas of a move have behind its fence
SELECT pg_catalog.unnest(retired) FROM shardctl.move WHERE id = {move}

-- name: making
-- Sessions that have made or changed something in these schemas and not committed it; NULL: a prepared
-- transaction. What makes a relation holds the schema till its end
WITH schema AS MATERIALIZED (
    SELECT oid FROM pg_catalog.pg_namespace WHERE nspname IN ({schemas})
)
SELECT DISTINCT l.pid
FROM pg_catalog.pg_locks AS l
LEFT JOIN pg_catalog.pg_depend AS d
    ON d.classid = l.classid AND d.objid = l.objid AND d.objsubid = 0
    AND d.refclassid = 'pg_catalog.pg_namespace'::pg_catalog.regclass
JOIN schema AS s ON s.oid = CASE l.classid
    WHEN 'pg_catalog.pg_namespace'::pg_catalog.regclass THEN l.objid ELSE d.refobjid END
WHERE l.locktype = 'object'
  AND l.database = (SELECT oid FROM pg_catalog.pg_database
                    WHERE datname = pg_catalog.current_database())
  AND l.pid IS DISTINCT FROM pg_catalog.pg_backend_pid()

-- name: writers
-- Sessions that hold or await a lock that a write takes on a relation there; NULL: a prepared one.
-- One that has written anything counts with any lock there: it may have made a view or function
-- elsewhere that is bound to these relations, and nothing else shows before it commits
SELECT DISTINCT l.pid
FROM pg_catalog.pg_locks AS l
JOIN pg_catalog.pg_class AS c ON c.oid = l.relation
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid
WHERE l.locktype = 'relation'
  AND l.database = (SELECT oid FROM pg_catalog.pg_database
                    WHERE datname = pg_catalog.current_database())
  AND n.nspname IN ({schemas})
  AND (l.mode NOT IN ('AccessShareLock', 'RowShareLock')
       OR l.virtualtransaction IN (SELECT x.virtualtransaction FROM pg_catalog.pg_locks AS x
                                   WHERE x.locktype = 'transactionid'
                                     AND x.mode = 'ExclusiveLock' AND x.granted))
  AND a.backend_type IS DISTINCT FROM 'autovacuum worker'
  AND l.pid IS DISTINCT FROM pg_catalog.pg_backend_pid()

-- name: unlogged
-- Tables and sequences there that no standby has the contents of
SELECT c.relname::text FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relpersistence = 'u' AND c.relkind IN ('r', 'S') AND n.nspname IN ({schemas})
ORDER BY 1

-- name: tables
-- The OIDs of the tables of these schemas
SELECT c.oid::bigint FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = ANY (%(schemas)s::name[]) AND c.relkind IN ('r', 'p', 'f')

-- name: stream_fence
-- Lock the moved tables against writers, take their schemas' names away, put a mark into the stream
BEGIN;
SET LOCAL lock_timeout TO {lock_timeout};
-- The first of these counts for each table, this one for all of them.
SET LOCAL statement_timeout TO {statement_timeout};
{put_up};
COMMIT

-- name: rehearsal
-- The same, but for locks and names, and nothing of it stays
BEGIN;
{put_up};
ROLLBACK

-- name: call
-- Part of those
SELECT pg_temp.shardctl_fence({attempt}, {revision}, {lock_timeout}, {not_after}, {for_real})

-- name: function
-- What plans the fence once, in a session that rehearses it: no other session sees it
CREATE OR REPLACE FUNCTION pg_temp.shardctl_fence(
    this_attempt integer, from_revision bigint, quick text, not_after timestamptz, for_real boolean
) RETURNS void LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $fence$
DECLARE
    one record;
    listed text;
    next bigint;
    uncalled jsonb := '[]';
BEGIN
    BEGIN
        -- An autovacuum gives way to this only after that time.
        PERFORM pg_catalog.set_config('deadlock_timeout', '10ms', true);
    EXCEPTION WHEN insufficient_privilege THEN
        NULL;
    END;
    {to_fenced}
    SELECT pg_catalog.string_agg(pg_catalog.format('ONLY %I.%I', n.nspname, c.relname), ', '
                                 ORDER BY c.oid)
    INTO listed
    FROM shardctl.move AS m
    JOIN pg_catalog.pg_namespace AS n ON n.nspname = ANY (m.schemas)
    JOIN pg_catalog.pg_class AS c ON c.relnamespace = n.oid AND c.relkind IN ('r', 'p')
    WHERE m.id = {move};
    IF for_real AND listed IS NOT NULL THEN
        -- A writer that committed behind the rename would be published under the retired name.
        EXECUTE 'LOCK TABLE ' || listed || ' IN SHARE ROW EXCLUSIVE MODE';
    END IF;
    -- A sequence that nextval() has not used has no last value: the next one goes with the mark.
    FOR one IN
        SELECT s.schema, c.relname
        FROM shardctl.move AS m, LATERAL unnest(m.schemas) AS s (schema)
        JOIN pg_catalog.pg_namespace AS n ON n.nspname = s.schema
        JOIN pg_catalog.pg_class AS c ON c.relnamespace = n.oid AND c.relkind = 'S'
        WHERE m.id = {move}
          AND CASE WHEN c.relkind <> 'S' THEN false
                   WHEN pg_catalog.has_sequence_privilege(c.oid, 'USAGE, SELECT')
                   THEN pg_catalog.pg_sequence_last_value(c.oid) IS NULL END
    LOOP
        EXECUTE pg_catalog.format('SELECT last_value FROM %I.%I', one.schema, one.relname)
        INTO next;
        uncalled := uncalled || pg_catalog.jsonb_build_object(
            'schema', one.schema, 'name', one.relname, 'next', next);
    END LOOP;
    INSERT INTO shardctl.stream (move, attempt, what, note)
    VALUES ({move}, this_attempt, 'fence', pg_catalog.jsonb_build_object('uncalled', uncalled));
    -- Last: at a rename a session forgets its plans.
    {renaming}
END
$fence$

-- name: is_held
-- Whether anybody else holds or awaits any lock of a relation there, or of an object anywhere
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_locks AS l
    WHERE l.database = (SELECT oid FROM pg_catalog.pg_database
                        WHERE datname = pg_catalog.current_database())
      AND l.pid IS DISTINCT FROM pg_catalog.pg_backend_pid()
      AND (l.locktype = 'object' OR l.relation IN (
          SELECT oid FROM pg_catalog.pg_class WHERE relnamespace = ANY ({namespaces}::oid[]))))

-- name: position
-- Up to where the WAL is on the disk
SELECT pg_catalog.pg_current_wal_flush_lsn()::text
