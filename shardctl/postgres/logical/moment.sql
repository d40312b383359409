-- name: gate
-- Close one of the two gates by which the sessions of this proof wait for each other
SELECT pg_catalog.pg_advisory_lock({gate})

-- name: passed
-- Part of others: wait until that session has opened its gate, whoever else wants or has it by then
DO $passed$
DECLARE
    usual text := pg_catalog.current_setting('lock_timeout');
BEGIN
    LOOP
        BEGIN
            PERFORM pg_catalog.set_config('lock_timeout', '5ms', true);
            PERFORM pg_catalog.pg_advisory_lock({gate});
            EXIT;
        EXCEPTION WHEN lock_not_available THEN
            EXIT WHEN NOT EXISTS (SELECT FROM pg_catalog.pg_lock_status() AS l
                                  WHERE l.locktype = 'advisory' AND l.granted AND l.pid = {pid});
        END;
    END LOOP;
    PERFORM pg_catalog.set_config('lock_timeout', usual, true);
END
$passed$

-- name: hold
-- Take a snapshot when the first gate opens, open the second one, and keep the snapshot
BEGIN;
{passed};
SELECT pg_catalog.pg_export_snapshot();
SELECT pg_catalog.pg_advisory_unlock_all()

-- name: open
-- Open every gate of a session
SELECT pg_catalog.pg_advisory_unlock_all()

-- name: mark_source
-- Lock the tables against writers, put the mark into the stream, and let the other session look
BEGIN;
SET LOCAL lock_timeout TO {lock_timeout};
-- The first of these counts for each table, this one for all of them.
SET LOCAL statement_timeout TO {statement_timeout};
DO $lock$
DECLARE
    listed text;
BEGIN
    BEGIN
        -- An autovacuum gives way to this only after that time.
        PERFORM pg_catalog.set_config('deadlock_timeout', '10ms', true);
    EXCEPTION WHEN insufficient_privilege THEN
        NULL;
    END;
    SELECT pg_catalog.string_agg(pg_catalog.format(', ONLY %I.%I', n.nspname, c.relname), ''
                                 ORDER BY c.oid)
    INTO listed
    FROM pg_catalog.pg_namespace AS n
    JOIN pg_catalog.pg_class AS c ON c.relnamespace = n.oid AND c.relkind IN ('r', 'p')
    WHERE n.nspname IN ({schemas});
    EXECUTE 'LOCK TABLE ONLY shardctl.stream' || coalesce(listed, '') || ' IN SHARE ROW EXCLUSIVE MODE';
    -- The target's worker would wait at another mark, too.
    IF (SELECT s.what FROM shardctl.stream AS s WHERE s.move = {move} ORDER BY s.at DESC LIMIT 1)
       IS DISTINCT FROM {before} THEN
        RAISE EXCEPTION 'another mark of move % is in transit', {move} USING ERRCODE = 'lock_not_available';
    END IF;
END
$lock$;
SELECT extract(epoch FROM pg_catalog.clock_timestamp() - pg_catalog.statement_timestamp())::float8 * 1000,
       pg_catalog.clock_timestamp();
INSERT INTO shardctl.stream (move, attempt, what) VALUES ({move}, 0, {mark});
SELECT pg_catalog.pg_advisory_unlock_all();
{passed};
COMMIT

-- name: stop_target
-- Let the worker wait at the next mark; a session that is left like this ends soon
BEGIN;
SET LOCAL lock_timeout TO {lock_timeout};
SET LOCAL idle_in_transaction_session_timeout TO {idle_timeout};
LOCK TABLE ONLY shardctl.stream IN SHARE MODE

-- name: see_target
-- Wait until the worker stands at the mark, let the other session look, and let the worker go on
SET LOCAL statement_timeout TO {statement_timeout};
DO $see$
BEGIN
    WHILE NOT EXISTS (
        SELECT FROM pg_catalog.pg_lock_status() AS l
        WHERE l.locktype = 'relation' AND NOT l.granted
          AND l.relation = 'shardctl.stream'::pg_catalog.regclass
          AND l.pid IN (SELECT w.pid FROM pg_catalog.pg_stat_subscription AS w WHERE w.subname = {subscription})
    ) LOOP
        PERFORM pg_catalog.pg_sleep(0.0005);
    END LOOP;
END
$see$;
SELECT pg_catalog.pg_advisory_unlock_all();
{passed};
COMMIT
