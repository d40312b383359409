-- name: pin
-- What the text of a row depends on, beside what every session has; no row may be hidden, and no
-- lock waited for long
SELECT set_config('TimeZone', 'UTC', false), set_config('lc_monetary', 'C', false),
       set_config('xmlbinary', 'base64', false), set_config('row_security', 'off', false),
       set_config('lock_timeout', '2s', false), set_config('synchronous_commit', 'on', false),
       -- A view that takes a table's place meanwhile would run its owner's code.
       (SELECT set_config(name, 'view', false) FROM pg_settings
        WHERE name = 'restrict_nonsystem_relation_kind')

-- name: journal
-- The copies whose originals may still have to be deleted; made by the first move of rows
CREATE TABLE IF NOT EXISTS shardctl.row_copy (
    source    integer     NOT NULL,
    target    integer     NOT NULL,
    tab       text        NOT NULL,
    key       text        NOT NULL,
    version   text        NOT NULL,
    digest    text        NOT NULL,
    who       text        NOT NULL,
    copied    timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    PRIMARY KEY (source, target, tab, key)
)

-- name: columns
-- A table's columns in the order of their names: type, whether generated, place in the primary key
SELECT a.attname::text,
       replace(format_type(a.atttypid, a.atttypmod), quote_ident(n.nspname) || '.', ''),
       a.attgenerated <> '',
       (SELECT u.place FROM pg_index AS x
        CROSS JOIN LATERAL unnest(x.indkey::int2[]) WITH ORDINALITY AS u (attnum, place)
        WHERE x.indrelid = c.oid AND x.indisprimary AND u.attnum = a.attnum
          AND u.place <= x.indnkeyatts)
FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace
JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE n.nspname = %(schema)s AND c.relname = %(table)s AND c.relkind = 'r'
ORDER BY a.attname COLLATE "C"

-- name: hold
-- Keep triggers, rules and foreign keys as they are while rows are written
LOCK TABLE ONLY {table} IN ROW EXCLUSIVE MODE

-- name: obstacles
-- What would do more than move a row: 4 stands for the triggers of INSERT, 8 for those of DELETE
WITH RECURSIVE t AS (
    SELECT c.oid FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE n.nspname = %(schema)s AND c.relname = %(table)s
), valued (type) AS (
    SELECT a.atttypid FROM t JOIN pg_attribute AS a ON a.attrelid = t.oid AND a.attnum > 0
    UNION
    SELECT inner_type.oid FROM valued AS v JOIN pg_type AS y ON y.oid = v.type
    CROSS JOIN LATERAL (
        SELECT y.typbasetype AS oid WHERE y.typtype = 'd'
        UNION ALL SELECT y.typelem WHERE y.typelem <> 0
        UNION ALL SELECT g.rngsubtype FROM pg_range AS g WHERE y.oid IN (g.rngtypid, g.rngmultitypid)
        UNION ALL SELECT c.atttypid FROM pg_attribute AS c
                  WHERE y.typtype = 'c' AND c.attrelid = y.typrelid AND c.attnum > 0
    ) AS inner_type
), computed (classid, objid) AS (
    -- What is computed when a row comes: checks, also of domains, generated columns, indexes.
    SELECT 'pg_constraint'::regclass, k.oid FROM t, pg_constraint AS k
    WHERE k.contype = 'c' AND (k.conrelid = t.oid OR k.contypid IN (SELECT type FROM valued))
    UNION ALL SELECT 'pg_attrdef'::regclass, d.oid FROM t JOIN pg_attrdef AS d ON d.adrelid = t.oid
    UNION ALL SELECT 'pg_class'::regclass, i.indexrelid FROM t JOIN pg_index AS i ON i.indrelid = t.oid
    UNION ALL SELECT 'pg_class'::regclass, t.oid FROM t
)
SELECT DISTINCT 'function ' || f.oid::regprocedure || ' of role ' || quote_ident(r.rolname)
       || ' would run with the rights of ' || quote_ident(current_user)
FROM computed AS e
JOIN pg_depend AS d ON (d.classid, d.objid) = (e.classid, e.objid)
LEFT JOIN pg_operator AS o ON d.refclassid = 'pg_operator'::regclass AND o.oid = d.refobjid
JOIN pg_proc AS f ON f.oid = CASE WHEN d.refclassid = 'pg_proc'::regclass THEN d.refobjid ELSE o.oprcode END
JOIN pg_roles AS r ON r.oid = f.proowner AND NOT r.rolsuper AND r.rolname <> current_user
WHERE %(event)s = 4
UNION ALL
SELECT 'foreign key ' || k.conname || ' of ' || k.conrelid::regclass || ' refers to it'
FROM t JOIN pg_constraint AS k ON k.confrelid = t.oid AND k.contype = 'f'
UNION ALL
SELECT 'trigger ' || g.tgname || ' would fire'
FROM t JOIN pg_trigger AS g ON g.tgrelid = t.oid
WHERE NOT g.tgisinternal AND g.tgenabled IN ('O', 'A') AND g.tgtype::integer & %(event)s <> 0
UNION ALL
SELECT 'rule ' || r.rulename || ' would rewrite the statement'
FROM t JOIN pg_rewrite AS r ON r.ev_class = t.oid
UNION ALL
SELECT 'column ' || a.attname || ' is unique and draws from a sequence, which would give the '
       'same value again'
FROM t JOIN pg_attribute AS a ON a.attrelid = t.oid AND a.attnum > 0
LEFT JOIN pg_attrdef AS d ON d.adrelid = t.oid AND d.adnum = a.attnum
WHERE EXISTS (SELECT FROM pg_index AS x
              WHERE x.indrelid = t.oid AND x.indisunique AND a.attnum = ANY (x.indkey::int2[]))
  -- A partition's identity column draws from its parent's sequence.
  AND (a.attidentity <> '' OR pg_get_expr(d.adbin, d.adrelid) ~ '\mnextval\('
       OR EXISTS (SELECT FROM pg_depend AS u JOIN pg_class AS s ON s.oid = u.refobjid
                  WHERE u.classid = 'pg_attrdef'::regclass AND u.objid = d.oid
                    AND u.refclassid = 'pg_class'::regclass AND s.relkind = 'S')
       -- It owns a sequence, from which the application may draw.
       OR EXISTS (SELECT FROM pg_depend AS u JOIN pg_class AS s ON s.oid = u.objid
                  WHERE u.refclassid = 'pg_class'::regclass AND u.refobjid = t.oid
                    AND u.refobjsubid = a.attnum AND u.classid = 'pg_class'::regclass
                    AND u.deptype IN ('a', 'i') AND s.relkind = 'S'))

-- name: digest
-- What stands for a row's whole content
encode(sha256(convert_to(ROW({columns})::text, 'UTF8')), 'hex')

-- name: list
-- The misplaced rows of a table, numbered; the numbers of a shard follow each other
CREATE TEMP TABLE shardctl_misplaced AS
SELECT row_number() OVER (ORDER BY belongs) AS number, each.*
FROM (SELECT {belongs} AS belongs, concat_ws(',', {shown}) AS shown, {keys},
             octet_length(ROW({columns})::text) AS size
      FROM ONLY {table} AS t
     ) AS each
WHERE belongs <> {shard}

-- name: index
-- Batches are found by number
ALTER TABLE pg_temp.shardctl_misplaced ADD PRIMARY KEY (number);
ANALYZE pg_temp.shardctl_misplaced

-- name: unlist
-- Before the next table's
DROP TABLE IF EXISTS pg_temp.shardctl_misplaced

-- name: numbers
-- The rows that belong to one shard, and the length of their texts
SELECT number, size FROM pg_temp.shardctl_misplaced WHERE belongs = {belongs_to} ORDER BY number

-- name: shown
-- The primary key of one row, for people
SELECT shown FROM pg_temp.shardctl_misplaced WHERE number = ANY ({numbers})

-- name: lock
-- Lock the rows of a batch that are still misplaced; those that another session holds are left
SELECT m.number
FROM pg_temp.shardctl_misplaced AS m JOIN ONLY {table} AS t ON {same}
WHERE m.number = ANY ({numbers}) AND {belongs} = m.belongs
ORDER BY m.number
FOR UPDATE OF t SKIP LOCKED

-- name: out
-- The locked rows, each with its version and what stands for its key and its content
COPY (
    SELECT m.number, m.shown, {key}, t.xmin::text, {digest}, {columns}
    FROM pg_temp.shardctl_misplaced AS m JOIN ONLY {table} AS t ON {same}
    WHERE m.number = ANY ({numbers})
) TO STDOUT

-- name: incoming
-- Where rows arrive, as plain columns of the target's types
CREATE TEMP TABLE shardctl_incoming ON COMMIT DROP AS
SELECT NULL::bigint AS number, NULL::text AS shown, NULL::text AS key, NULL::text AS version,
       NULL::text AS digest, {plain}
FROM ONLY {table} AS t WITH NO DATA

-- name: in
-- Rows arrive
COPY pg_temp.shardctl_incoming FROM STDIN

-- name: hold_existing
-- No session changes rows of the same key while they are compared
SELECT count(*) FROM (
    SELECT FROM ONLY {table} AS t JOIN pg_temp.shardctl_incoming AS i ON {same} FOR SHARE OF t
) AS held

-- name: compare
-- Of each row: whether the target has its key, has the same content, and whether it was copied before
SELECT i.number, i.shown, i.key, i.version, i.digest, t.tableoid IS NOT NULL,
       coalesce({digest} = i.digest, false),
       EXISTS (SELECT FROM shardctl.row_copy AS c
               WHERE (c.source, c.target, c.tab) = ({shard}, {belongs_to}, {name})
                 AND (c.key, c.version, c.digest) = (i.key, i.version, i.digest))
FROM pg_temp.shardctl_incoming AS i LEFT JOIN ONLY {table} AS t ON {same}

-- name: insert
-- Copy rows; values of identity columns stay what they are
INSERT INTO {table} ({columns}) OVERRIDING SYSTEM VALUE
SELECT {incoming} FROM pg_temp.shardctl_incoming AS i WHERE i.number = ANY ({numbers})

-- name: proof
-- How many of them the target now has, equal in every column
SELECT count(*)
FROM pg_temp.shardctl_incoming AS i JOIN ONLY {table} AS t ON {same}
WHERE i.number = ANY ({numbers}) AND {digest} = i.digest

-- name: record
-- Write down, in the transaction that copies, which version of which row was copied
INSERT INTO shardctl.row_copy (source, target, tab, key, version, digest, who)
SELECT {shard}, {belongs_to}, {name}, i.key, i.version, i.digest, {who}
FROM pg_temp.shardctl_incoming AS i WHERE i.number = ANY ({numbers})
ON CONFLICT (source, target, tab, key) DO UPDATE
SET version = excluded.version, digest = excluded.digest, who = excluded.who,
    copied = excluded.copied

-- name: delete
-- Delete exactly the versions that were copied
DELETE FROM ONLY {table} AS t
USING pg_temp.shardctl_misplaced AS m,
      unnest({numbers}, {versions}, {digests}) AS a (number, version, digest)
WHERE m.number = a.number AND {same} AND t.xmin::text = a.version AND {digest} = a.digest

-- name: copied
-- The keys of copies whose originals may still exist
SELECT key FROM shardctl.row_copy
WHERE (source, target, tab) = ({shard}, {belongs_to}, {name})

-- name: still_there
-- Which of these keys misplaced rows have
SELECT {key} FROM pg_temp.shardctl_misplaced AS m
WHERE m.belongs = {belongs_to} AND {key} = ANY ({wanted})

-- name: settle
-- Forget copies whose originals are gone
DELETE FROM shardctl.row_copy
WHERE (source, target, tab) = ({shard}, {belongs_to}, {name}) AND key = ANY ({settled})

-- name: in_use
-- How many rows of these are still misplaced
SELECT count(*)
FROM pg_temp.shardctl_misplaced AS m JOIN ONLY {table} AS t ON {same}
WHERE m.number = ANY ({numbers}) AND {belongs} = m.belongs
