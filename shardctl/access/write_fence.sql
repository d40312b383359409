-- name: has_function
-- Whether what the triggers call exists
SELECT to_regprocedure('shardctl.refuse_write_while_moving()') IS NOT NULL

-- name: put_up
-- Let the moved tables refuse writes and report it in the journal, at once; waits for who writes to them
BEGIN;
DO $put_up$
DECLARE
    one record;
BEGIN
    {to_fenced}
    {function};
    FOR one IN
        SELECT pg_catalog.format('%I.%I', n.nspname, c.relname) AS name, u.shard,
               CASE c.relkind WHEN 'f' THEN '' ELSE 'OR TRUNCATE' END AS truncate
        FROM shardctl.move AS m, LATERAL unnest(m.shards, m.schemas) AS u (shard, schema)
        JOIN pg_catalog.pg_namespace AS n ON n.nspname = u.schema
        JOIN pg_catalog.pg_class AS c ON c.relnamespace = n.oid AND c.relkind IN ('r', 'p', 'f')
        WHERE m.id = {move}
        ORDER BY c.oid
    LOOP
        -- Its lock waits for all writers and for no reader, so that having it is the proof that no
        -- write from before is uncommitted.
        EXECUTE pg_catalog.format(
            'CREATE OR REPLACE TRIGGER shardctl_moving BEFORE INSERT OR UPDATE OR DELETE %s ON %s'
            ' FOR EACH STATEMENT EXECUTE FUNCTION shardctl.refuse_write_while_moving(%L, %L)',
            one.truncate, one.name, one.shard, {move});
        -- Also where session_replication_role would let triggers sleep.
        EXECUTE pg_catalog.format(
            'ALTER TABLE ONLY %s ENABLE ALWAYS TRIGGER shardctl_moving', one.name);
        IF pg_catalog.clock_timestamp() > {not_after} THEN
            -- This server hung, or other sessions were in the way of table after table.
            RAISE EXCEPTION 'move % is too late', {move} USING ERRCODE = 'SH003';
        END IF;
    END LOOP;
END
$put_up$;
COMMIT

-- name: drop
-- Part of other queries: drop the triggers; waits for those who read. `one` is a record
FOR one IN
    SELECT pg_catalog.format('%I.%I', n.nspname, c.relname) AS name
    FROM shardctl.move AS m
    JOIN pg_catalog.pg_namespace AS n ON n.nspname = ANY (m.schemas)
    JOIN pg_catalog.pg_class AS c ON c.relnamespace = n.oid
    JOIN pg_catalog.pg_trigger AS g ON g.tgrelid = c.oid
    WHERE m.id = {move}
      AND g.tgfoid = pg_catalog.to_regprocedure('shardctl.refuse_write_while_moving()')
LOOP
    EXECUTE pg_catalog.format('DROP TRIGGER shardctl_moving ON %s', one.name);
END LOOP;

-- name: left
-- Tables with triggers of these schemas, of a move that was aborted
SELECT pg_catalog.format('%%I.%%I', n.nspname, c.relname)
FROM pg_catalog.pg_trigger AS g
JOIN pg_catalog.pg_class AS c ON c.oid = g.tgrelid
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = ANY (%(schemas)s::name[])
  AND g.tgfoid = pg_catalog.to_regprocedure('shardctl.refuse_write_while_moving()')
ORDER BY c.oid

-- name: clear_away
-- Take the trigger of one table away, of a move that was aborted: it is not in force any more
DO $clear_away$
BEGIN
    PERFORM pg_catalog.set_config('lock_timeout', {lock_timeout}, true);
    PERFORM pg_catalog.set_config('synchronous_commit', 'local', true);
    PERFORM FROM shardctl.move WHERE id = {move} AND state = 'undone' FOR UPDATE;
    IF FOUND AND pg_catalog.to_regclass({table}) IS NOT NULL THEN
        EXECUTE pg_catalog.format(
            'DROP TRIGGER IF EXISTS shardctl_moving ON %s', {table}::pg_catalog.text);
    END IF;
END
$clear_away$

-- name: tables
-- The OIDs of the tables of these schemas
SELECT c.oid::bigint FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = ANY (%(schemas)s::name[]) AND c.relkind IN ('r', 'p', 'f')

-- name: lasting
-- Who has written there in a transaction that is older, and has not ended; NULL: a prepared one
SELECT DISTINCT l.pid
FROM pg_catalog.pg_locks AS l
LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid
WHERE l.locktype = 'relation' AND l.granted
  AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
  AND l.relation = ANY (%(tables)s::oid[])
  AND l.mode NOT IN ('AccessShareLock', 'RowShareLock')
  AND (l.pid IS NULL OR (a.backend_type <> 'autovacuum worker' AND a.pid <> pg_backend_pid()
                         AND a.xact_start < clock_timestamp() - make_interval(secs => %(seconds)s)))

-- name: yields_ms
-- In how many ms a vacuum that holds one of these tables gives way to who waits; no row: there is none
SELECT s.setting::integer + 500
FROM pg_catalog.pg_settings AS s
WHERE s.name = 'deadlock_timeout' AND EXISTS (
    SELECT FROM pg_catalog.pg_locks AS l
    JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid
    WHERE l.locktype = 'relation' AND l.granted AND a.backend_type = 'autovacuum worker'
      AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
      AND l.relation = ANY (%(tables)s::oid[]))

-- name: refusing
-- Those of these schemas that have such triggers in force
SELECT DISTINCT n.nspname::text
FROM pg_catalog.pg_trigger AS g
JOIN pg_catalog.pg_proc AS p ON p.oid = g.tgfoid
JOIN pg_catalog.pg_class AS c ON c.oid = g.tgrelid
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = ANY (%(schemas)s::name[])
  -- The trigger's second argument is its move.
  AND strpos(p.prosrc, '= ' || quote_literal(split_part(encode(g.tgargs, 'escape'), '\000', 2))) = 0
  AND g.tgfoid = pg_catalog.to_regprocedure('shardctl.refuse_write_while_moving()')

-- name: uncovered
-- Tables of these schemas that take writes
SELECT pg_catalog.format('%I.%I', n.nspname, c.relname)
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname IN ({schemas}) AND c.relkind IN ('r', 'p', 'f')
  AND NOT EXISTS (
      SELECT FROM pg_catalog.pg_trigger AS g
      WHERE g.tgrelid = c.oid AND g.tgenabled = 'A'
        AND g.tgfoid = pg_catalog.to_regprocedure('shardctl.refuse_write_while_moving()'))
ORDER BY 1
