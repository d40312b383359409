-- name: fence
-- Lock the moved tables against writers, take their schemas' names away, put a mark into the stream
BEGIN;
SET LOCAL lock_timeout TO {lock_timeout};
-- The first of these counts for each table, this one for all of them.
SET LOCAL statement_timeout TO {statement_timeout};
DO $fence$
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
    IF listed IS NOT NULL THEN
        -- A writer that committed behind the rename would be published under the retired name.
        EXECUTE 'LOCK TABLE ' || listed || ' IN SHARE ROW EXCLUSIVE MODE';
    END IF;
    FOR one IN
        SELECT u.schema, u.retired
        FROM shardctl.move AS m, LATERAL unnest(m.schemas, m.retired) AS u (schema, retired)
        WHERE m.id = {move}
    LOOP
        EXECUTE pg_catalog.format('ALTER SCHEMA %I RENAME TO %I', one.schema, one.retired);
    END LOOP;
    -- A sequence that nextval() has not used has no last value: the next one goes with the mark.
    FOR one IN
        SELECT u.schema, u.retired, c.relname
        FROM shardctl.move AS m, LATERAL unnest(m.schemas, m.retired) AS u (schema, retired)
        JOIN pg_catalog.pg_namespace AS n ON n.nspname = u.retired
        JOIN pg_catalog.pg_class AS c ON c.relnamespace = n.oid AND c.relkind = 'S'
        WHERE m.id = {move}
          AND CASE WHEN c.relkind <> 'S' THEN false
                   WHEN pg_catalog.has_sequence_privilege(c.oid, 'USAGE, SELECT')
                   THEN pg_catalog.pg_sequence_last_value(c.oid) IS NULL END
    LOOP
        EXECUTE pg_catalog.format('SELECT last_value FROM %I.%I', one.retired, one.relname)
        INTO next;
        uncalled := uncalled || pg_catalog.jsonb_build_object(
            'schema', one.schema, 'name', one.relname, 'next', next);
    END LOOP;
    INSERT INTO shardctl.stream (move, attempt, what, note)
    VALUES ({move}, {attempt}, 'fence', pg_catalog.jsonb_build_object('uncalled', uncalled));
    IF pg_catalog.clock_timestamp() > {not_after} THEN
        -- This server hung, and its clients are served again or are about to be.
        RAISE EXCEPTION 'move % is too late', {move} USING ERRCODE = 'SH003';
    END IF;
END
$fence$;
COMMIT

-- name: yields_ms
-- In how many ms a vacuum that holds one of these tables gives way to a lock; no row: there is none
SELECT s.setting::integer + 500
FROM pg_settings AS s
WHERE s.name = 'deadlock_timeout' AND EXISTS (
    SELECT FROM pg_locks AS l
    JOIN pg_stat_activity AS a ON a.pid = l.pid
    JOIN pg_class AS c ON c.oid = l.relation
    JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE l.locktype = 'relation' AND l.granted AND a.backend_type = 'autovacuum worker'
      AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND n.nspname = ANY (%(schemas)s::name[]))

-- name: unyielding
-- What holds one of these tables and does not give way to a lock: who, and what it runs
SELECT DISTINCT a.pid, left(a.query, 80)
FROM pg_locks AS l
JOIN pg_stat_activity AS a ON a.pid = l.pid
JOIN pg_class AS c ON c.oid = l.relation
JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE l.locktype = 'relation' AND l.granted AND l.mode = 'ShareUpdateExclusiveLock'
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND n.nspname = ANY (%(schemas)s::name[])
  AND (a.backend_type <> 'autovacuum worker' OR a.query LIKE '%%to prevent wraparound%%')

-- name: in_the_way
-- Who keeps a fence from these tables or from the names of their schemas: pid, who, lock, and on what
WITH schema AS MATERIALIZED (
    SELECT oid, nspname FROM pg_namespace WHERE nspname = ANY (%(schemas)s::name[])
), held AS (
    SELECT l.pid, l.mode, format('%%I.%%I', s.nspname, c.relname) AS what
    FROM pg_locks AS l
    JOIN pg_class AS c ON c.oid = l.relation AND c.relkind IN ('r', 'p')
    JOIN schema AS s ON s.oid = c.relnamespace
    WHERE l.locktype = 'relation' AND l.granted AND l.mode NOT IN ('AccessShareLock', 'RowShareLock')
      AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    UNION ALL
    SELECT l.pid, l.mode, 'schema ' || s.nspname
    FROM pg_locks AS l
    JOIN schema AS s ON s.oid = l.objid AND l.classid = 'pg_namespace'::regclass
    WHERE l.locktype = 'object' AND l.granted
      AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
)
SELECT DISTINCT ON (h.pid) h.pid,
       concat_ws(', ', CASE a.backend_type WHEN 'autovacuum worker' THEN left(a.query, 80) END,
                 'user ' || a.usename, 'application ' || nullif(a.application_name, ''),
                 nullif(a.state, 'active'),
                 'since ' || date_trunc('second', clock_timestamp() - a.xact_start)),
       h.mode, h.what
FROM held AS h
LEFT JOIN pg_stat_activity AS a ON a.pid = h.pid
WHERE h.pid IS DISTINCT FROM pg_backend_pid()
ORDER BY h.pid, h.mode, h.what
