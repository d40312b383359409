-- name: tables
-- Tables of these schemas: the id that next_id() makes, the primary key, the columns that an INSERT
-- may give, what would do more than move a row, and the names of all partitioned tables and parents
SELECT n.nspname::text, c.relname::text, i.attname::text,
       array(SELECT a.attname::text FROM pg_index AS x
             CROSS JOIN LATERAL unnest(x.indkey) WITH ORDINALITY AS u (attnum, place)
             JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = u.attnum
             WHERE x.indrelid = c.oid AND x.indisprimary AND u.place <= x.indnkeyatts
             ORDER BY u.place),
       array(SELECT a.attname::text FROM pg_attribute AS a
             WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
               AND a.attgenerated = '' ORDER BY a.attnum),
       array(SELECT 'foreign key ' || k.conname || ' of ' || k.conrelid::regclass || ' refers to it'
             FROM pg_constraint AS k WHERE k.confrelid = c.oid AND k.contype = 'f'
             UNION ALL
             SELECT 'trigger ' || g.tgname || ' would fire' FROM pg_trigger AS g
             WHERE g.tgrelid = c.oid AND NOT g.tgisinternal AND g.tgenabled IN ('O', 'A')
               AND g.tgtype::integer & (4 | 8) <> 0  -- of INSERT and DELETE
             UNION ALL
             SELECT 'rule ' || r.rulename || ' would rewrite the statement' FROM pg_rewrite AS r
             WHERE r.ev_class = c.oid),
       array(WITH RECURSIVE up (oid) AS (
                 SELECT inhparent FROM pg_inherits WHERE inhrelid = c.oid
                 UNION
                 SELECT h.inhparent FROM up JOIN pg_inherits AS h ON h.inhrelid = up.oid)
             SELECT p.relname::text FROM up JOIN pg_class AS p ON p.oid = up.oid)
FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace
LEFT JOIN LATERAL (
    SELECT a.attname
    FROM pg_index AS x
    JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = x.indkey[0]
                          AND a.atttypid = 'int8'::regtype
    JOIN pg_attrdef AS d ON d.adrelid = c.oid AND d.adnum = a.attnum
    WHERE x.indrelid = c.oid AND x.indisprimary AND x.indnkeyatts = 1
      AND EXISTS (SELECT FROM pg_depend AS u JOIN pg_proc AS p ON p.oid = u.refobjid
                  WHERE u.classid = 'pg_attrdef'::regclass AND u.objid = d.oid
                    AND u.refclassid = 'pg_proc'::regclass AND p.proname = %(next_id)s)
) AS i ON true
WHERE c.relkind = 'r' AND n.nspname = ANY (%(schemas)s)
ORDER BY c.relname, n.nspname

-- name: rows
-- Some rows of a part of a table for each other shard that they belong to, and how many there are
SELECT m.belongs, CASE m.number WHEN 1 THEN m.total ELSE 0 END, {primary_key}, t.{column}::text, {moves}
FROM (
    SELECT belongs, place, count(*) OVER (PARTITION BY belongs) AS total,
           row_number() OVER (PARTITION BY belongs ORDER BY primary_key, value) AS number
    FROM (
        SELECT {belongs} AS belongs, t.ctid AS place, {primary_key} AS primary_key, t.{column}::text AS value
        FROM ONLY {table} AS t {part}
    ) AS each
    WHERE belongs <> {shard}
) AS m JOIN ONLY {table} AS t ON t.ctid = m.place
LEFT JOIN shardctl.map AS s ON s.shard = m.belongs
WHERE m.number <= {limit}
ORDER BY m.belongs, m.number

-- name: moves
-- Part of another: the statements that insert a row into its shard, and delete this version of it
format('INSERT INTO %I.%I (%s) OVERRIDING SYSTEM VALUE VALUES (%s)', s.schema, {name}, {columns}, {values}),
format('DELETE FROM ONLY %I.%I WHERE (%s) = (%s) AND xmin = %L', {schema}, {name}, {keys}, {key_values}, t.xmin)

-- name: begin
-- A transaction for one place, with nothing left of what ran before; and whether its schema exists
{clean}
DEALLOCATE ALL;
BEGIN {mode};
SET LOCAL statement_timeout TO {timeout_ms};
SET LOCAL search_path TO {path};
SELECT {schema} IS NULL OR EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = {schema})

-- name: clean
-- Part of another: what a committed transaction may have left in the session
RESET SESSION AUTHORIZATION; RESET ROLE; RESET ALL; DISCARD TEMP;
