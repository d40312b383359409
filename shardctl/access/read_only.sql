-- name: function
-- What the triggers call; their arguments are the shard, since when, and who did it
CREATE OR REPLACE FUNCTION shardctl.refuse_write() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog AS $refuse_write$
BEGIN
    RAISE EXCEPTION 'shard % is read-only: % on table %.% is refused',
                    TG_ARGV[0], TG_OP, TG_TABLE_SCHEMA, TG_TABLE_NAME
        USING ERRCODE = 'read_only_sql_transaction',
              DETAIL = 'Since ' || TG_ARGV[1] || ', by ' || TG_ARGV[2] || '.',
              HINT = 'To accept writes again, an operator runs: shardctl read-only off ' || TG_ARGV[0];
END
$refuse_write$

-- name: tables
-- The tables of these schemas: what they need, what they have; a row without one for an empty schema
WITH RECURSIVE shard AS MATERIALIZED (
    SELECT oid, nspname FROM pg_namespace WHERE nspname = ANY (%(schemas)s)
), found AS MATERIALIZED (
    SELECT c.oid, c.relname, c.relkind, c.relnamespace, c.relowner
    FROM pg_class AS c JOIN shard AS s ON s.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p', 'f')
), line AS (
    SELECT h.inhrelid AS leaf, h.inhparent AS above
    FROM pg_inherits AS h JOIN found AS f ON f.oid = h.inhrelid
    WHERE f.relkind <> 'p'
    UNION
    SELECT l.leaf, h.inhparent FROM line AS l JOIN pg_inherits AS h ON h.inhrelid = l.above
), entered AS (
    -- What is written without a statement that names it, or anything in its schema: the part of a
    -- table elsewhere, and what a subscription fills. Only triggers for rows see that.
    SELECT l.leaf AS oid
    FROM line AS l JOIN found AS f ON f.oid = l.leaf JOIN pg_class AS a ON a.oid = l.above
    WHERE a.relnamespace <> f.relnamespace
    UNION
    SELECT srrelid FROM pg_subscription_rel
    UNION
    SELECT l.leaf FROM line AS l JOIN pg_subscription_rel AS r ON r.srrelid = l.above
), trigger AS (
    SELECT g.tgrelid, min(encode(g.tgargs, 'hex')) AS arguments,
           array_agg(g.tgname::text) FILTER (WHERE g.tgparentid = 0) AS names,
           bool_or(g.works AND g.tgname = 'shardctl_read_only' AND g.tgtype = g.wanted) AS statement,
           bool_or(g.works AND g.tgname = 'shardctl_read_only_row' AND g.tgtype = 31) AS by_row
    FROM (SELECT t.*, t.tgenabled = 'A' AND t.tgqual IS NULL AND t.tgattr::text = '' AS works,
                 -- Before: insert, delete, update, truncate; the last cannot be of foreign tables.
                 CASE f.relkind WHEN 'f' THEN 30 ELSE 62 END AS wanted
          FROM pg_trigger AS t JOIN found AS f ON f.oid = t.tgrelid
          WHERE t.tgfoid = to_regprocedure('shardctl.refuse_write()')) AS g
    GROUP BY g.tgrelid
)
SELECT s.nspname::text AS schema, f.oid, f.relname::text AS name, f.relkind = 'f' AS "foreign",
       e.oid IS NOT NULL AS by_row,
       coalesce(t.statement AND (t.by_row OR e.oid IS NULL), false) AS refuses,
       t.arguments, coalesce(t.names, '{}') AS triggers,
       coalesce(pg_has_role(f.relowner, 'USAGE'), true) AS ours
FROM shard AS s
LEFT JOIN found AS f ON f.relnamespace = s.oid
LEFT JOIN entered AS e ON e.oid = f.oid
LEFT JOIN trigger AS t ON t.tgrelid = f.oid
ORDER BY 1, 3

-- name: marks
-- The schemas of these that have such triggers: tables, those that refuse writes, the first arguments
SELECT schema, count(oid), count(oid) FILTER (WHERE refuses), min(arguments)
FROM ({tables}) AS one
GROUP BY schema
HAVING count(arguments) > 0
ORDER BY 1

-- name: lock
-- Wait for all who write to tables, or in a stronger mode for all who use them, and hold up new ones
LOCK TABLE ONLY {tables} IN {mode} MODE

-- name: put_on
-- Let a table refuse writes, also where session_replication_role would let triggers sleep
CREATE OR REPLACE TRIGGER {trigger} BEFORE INSERT OR UPDATE OR DELETE {truncate} ON {table}
    FOR EACH {each} EXECUTE FUNCTION shardctl.refuse_write({shard}, {since}, {who});
ALTER TABLE ONLY {table} ENABLE ALWAYS TRIGGER {trigger}

-- name: disable
-- Accept writes: unlike dropping the triggers, this does not wait for readers
ALTER TABLE ONLY {table} DISABLE TRIGGER {trigger}

-- name: drop
-- Drop a trigger; waits for readers, and holds up new ones
DROP TRIGGER {trigger} ON {table}

-- name: timeouts
-- How long the statements of this transaction wait for a lock, and how long they may take
SELECT set_config('lock_timeout', %(lock)s, true), set_config('statement_timeout', %(statement)s, true)

-- name: standby
-- Whether this server is a standby; the time now, as it is reported
SELECT pg_is_in_recovery(),
       to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')
