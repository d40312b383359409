-- name: fence
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
-- Part of those, where the session has the function
SELECT pg_temp.shardctl_fence({attempt}, {revision}, {lock_timeout}, {not_after}, {for_real})

-- name: function
-- What plans the fence once, in a session that rehearses it: no other session sees it
CREATE OR REPLACE FUNCTION pg_temp.shardctl_fence(
    this_attempt integer, from_revision bigint, quick text, not_after timestamptz, for_real boolean
) RETURNS void LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $fence$
{body}
$fence$

-- name: do
-- Part of the fence, in a session without the function: it may make none, or was opened since
DO $fence$
DECLARE
    this_attempt  CONSTANT integer     := {attempt};
    from_revision CONSTANT bigint      := {revision};
    quick         CONSTANT text        := {lock_timeout};
    not_after     CONSTANT timestamptz := {not_after};
    for_real      CONSTANT boolean     := {for_real};
BEGIN
{body};
END
$fence$

-- name: body
-- Part of both
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
