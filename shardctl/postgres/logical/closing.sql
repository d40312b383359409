-- name: rights
-- What was granted on each schema, or on its retired copy where that is there: the schema, grantor
-- ('' is the owner), grantee ('' is PUBLIC), right, option of others than the owner, who has it anyway.
-- What the owner has granted comes first, then what others passed on
SELECT u.live::text,
       CASE a.grantor WHEN n.nspowner THEN '' ELSE pg_catalog.pg_get_userbyid(a.grantor)::text END,
       CASE a.grantee WHEN 0 THEN '' ELSE pg_catalog.pg_get_userbyid(a.grantee)::text END,
       a.privilege_type, a.is_grantable AND a.grantee <> n.nspowner
FROM ROWS FROM (unnest(%(schemas)s::name[]), unnest(%(retired)s::name[])) AS u (live, retired)
-- A live name behind the fence is that of a schema made there since.
JOIN pg_catalog.pg_namespace AS n ON n.nspname = coalesce(
    (SELECT r.nspname FROM pg_catalog.pg_namespace AS r WHERE r.nspname = u.retired), u.live)
CROSS JOIN LATERAL pg_catalog.aclexplode(
    coalesce(n.nspacl, pg_catalog.acldefault('n', n.nspowner))) AS a
ORDER BY n.nspname, a.grantor <> n.nspowner, a.grantee, a.privilege_type

-- name: copy
-- Say that the copies of a move are closed, unless they have a row already
INSERT INTO shardctl.stream_copy (move, is_open) VALUES (%(move)s, false) ON CONFLICT DO NOTHING

-- name: tables
-- Tables on which writes are refused, those that have all of a move's triggers left out
SELECT c.oid::bigint
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = ANY (%(schemas)s::name[]) AND c.relkind IN ('r', 'p')
  AND (SELECT count(*) FROM pg_catalog.pg_trigger AS g
       WHERE g.tgrelid = c.oid AND g.tgname IN ('shardctl_copy', 'shardctl_copy_truncate')
         AND pg_catalog.split_part(pg_catalog.encode(g.tgargs, 'escape'), '\000', 2) = %(move)s
         AND g.tgenabled = CASE g.tgname WHEN 'shardctl_copy' THEN 'A' ELSE 'O' END) < 2
ORDER BY c.oid

-- name: close
-- Let some tables refuse writes, and leave them to no vacuum. A trigger's arguments are the schema,
-- the move, and what the table had as autovacuum_enabled before ('' for nothing)
DO $close$
DECLARE
    one record;
BEGIN
    PERFORM pg_catalog.set_config('lock_timeout', {lock_timeout}, true);
    FOR one IN
        SELECT pg_catalog.format('%I.%I', n.nspname, c.relname) AS name, n.nspname AS schema,
               c.relkind,
               coalesce((SELECT o.option_value FROM pg_catalog.pg_options_to_table(c.reloptions) AS o
                         WHERE o.option_name = 'autovacuum_enabled'), '') AS vacuumed
        FROM pg_catalog.pg_class AS c
        JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
        WHERE c.oid = ANY ({tables}::oid[])
    LOOP
        -- The worker that applies a stream fires statement triggers for TRUNCATE alone.
        EXECUTE pg_catalog.format(
            'CREATE OR REPLACE TRIGGER shardctl_copy BEFORE INSERT OR UPDATE OR DELETE ON %1$s'
            ' FOR EACH STATEMENT EXECUTE FUNCTION shardctl.refuse_write_to_copy(%2$L, %3$L, %4$L);'
            ' ALTER TABLE ONLY %1$s ENABLE ALWAYS TRIGGER shardctl_copy;'
            ' CREATE OR REPLACE TRIGGER shardctl_copy_truncate BEFORE TRUNCATE ON %1$s'
            ' FOR EACH STATEMENT EXECUTE FUNCTION shardctl.refuse_write_to_copy(%2$L, %3$L, %4$L)',
            one.name, one.schema, {move}, one.vacuumed);
        IF one.relkind = 'r' THEN
            EXECUTE pg_catalog.format('ALTER TABLE ONLY %s SET (autovacuum_enabled = off)', one.name);
        END IF;
    END LOOP;
END
$close$

-- name: open
-- Part of a claim: let the copies of a move accept writes; repeatable
INSERT INTO shardctl.stream_copy (move, is_open) VALUES ({move}, true)
ON CONFLICT (move) DO UPDATE SET is_open = true;

-- name: closed
-- Tables with triggers of a move: schemas and names
SELECT DISTINCT c.oid::bigint, n.nspname::text, c.relname::text
FROM pg_catalog.pg_trigger AS g
JOIN pg_catalog.pg_class AS c ON c.oid = g.tgrelid
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE g.tgname IN ('shardctl_copy', 'shardctl_copy_truncate')
  AND pg_catalog.split_part(pg_catalog.encode(g.tgargs, 'escape'), '\000', 2) = %(move)s
ORDER BY 1

-- name: remove
-- Take a move's triggers from one table, and leave it to vacuums again
DO $remove$
DECLARE
    name     text;
    kind     "char";
    vacuumed text;
    ours     boolean;
BEGIN
    -- `forget` puts all of them on the disk; there may be thousands.
    PERFORM pg_catalog.set_config('synchronous_commit', 'off', true);
    SELECT pg_catalog.format('%I.%I', n.nspname, c.relname), c.relkind,
           pg_catalog.split_part(pg_catalog.encode(g.tgargs, 'escape'), '\000', 3),
           -- Another value is an operator's, who has set it since.
           'autovacuum_enabled=off' = ANY (c.reloptions)
    INTO name, kind, vacuumed, ours
    FROM pg_catalog.pg_trigger AS g
    JOIN pg_catalog.pg_class AS c ON c.oid = g.tgrelid
    JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    WHERE c.oid = {table} AND g.tgname IN ('shardctl_copy', 'shardctl_copy_truncate')
    LIMIT 1;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    EXECUTE pg_catalog.format(
        'DROP TRIGGER IF EXISTS shardctl_copy ON %1$s; DROP TRIGGER IF EXISTS shardctl_copy_truncate ON %1$s', name);
    IF kind = 'r' AND ours THEN
        EXECUTE pg_catalog.format(
            CASE vacuumed WHEN '' THEN 'ALTER TABLE ONLY %s RESET (autovacuum_enabled)'
                          ELSE 'ALTER TABLE ONLY %s SET (autovacuum_enabled = %s)' END, name, vacuumed);
    END IF;
END
$remove$

-- name: forget
-- Forget the copies of a move, when no table has its triggers any more
DELETE FROM shardctl.stream_copy WHERE move = %(move)s
