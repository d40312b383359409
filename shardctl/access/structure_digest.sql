-- name: said
-- Part of other queries: all that a copy has of the structure of these schemas, by object. A rewriting
-- ALTER leaves the structure equal and the stream without its rows, but not `xmin`. A rename writes
-- the rows of schemas again, a vacuum those of relations, REINDEX CONCURRENTLY those of indexes and
-- constraints, and forgets where their expressions were in a statement: of these, values count.
-- pg_dump copies no comments here, and no invalid index
WITH schema AS MATERIALIZED (
    SELECT oid, nspname::text AS name, nspowner, nspacl FROM pg_catalog.pg_namespace
    WHERE nspname IN ({schemas})
), relation AS MATERIALIZED (
    SELECT c.oid, s.name AS schema, c.relname::text AS name, c.relkind, c.reltoastrelid,
           pg_catalog.concat_ws(' ', c.relname, c.relkind, c.relpersistence, c.relreplident,
                                c.relrowsecurity, c.relforcerowsecurity, c.relispartition,
                                c.relpartbound, c.relowner, c.relacl, c.relispopulated,
                                c.reloptions, c.reltablespace, c.relam, c.reloftype) AS said
    FROM pg_catalog.pg_class AS c JOIN schema AS s ON s.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S', 'c')
), made AS MATERIALIZED (
    SELECT t.oid, s.name AS schema, 'type ' || t.typname AS name, t.xmin AS written
    FROM pg_catalog.pg_type AS t JOIN schema AS s ON s.oid = t.typnamespace
    WHERE t.typtype IN ('d', 'e', 'r', 'm', 'p') OR t.typtype = 'b' AND t.typcategory <> 'A'
       OR t.typrelid IN (SELECT oid FROM relation WHERE relkind = 'c')
    {kinds}
), said (schema, object, what) AS (
    SELECT schema, name, pg_catalog.concat_ws(' ', oid, said) FROM relation
    UNION ALL
    SELECT name, '', pg_catalog.concat_ws(' ', 'n', oid, nspowner, nspacl) FROM schema
    UNION ALL
    SELECT r.schema, r.name, pg_catalog.concat_ws(' ', 'o', r.oid, o.reloptions)
    FROM relation AS r JOIN pg_catalog.pg_class AS o ON o.oid = r.reltoastrelid
    WHERE o.reloptions IS NOT NULL
    UNION ALL
    SELECT schema, name, pg_catalog.concat_ws(' ', 'm', oid, written) FROM made
    {parts}
    UNION ALL
    SELECT s.name, '', pg_catalog.concat_ws(' ', 'g', g.oid, g.xmin)
    FROM pg_catalog.pg_default_acl AS g JOIN schema AS s ON s.oid = g.defaclnamespace
    UNION ALL
    SELECT r.schema, r.name, pg_catalog.concat_ws(' ', 'd', d.adrelid, d.adnum, d.adbin)
    FROM relation AS r JOIN pg_catalog.pg_attrdef AS d ON d.adrelid = r.oid
    UNION ALL
    SELECT r.schema, r.name,
           pg_catalog.concat_ws(' ', 'i', i.indrelid, c.relname, c.relam, c.reltablespace,
                                c.reloptions, i.indnkeyatts, i.indkey, i.indclass, i.indcollation,
                                i.indoption,
                                CASE WHEN i.indisunique THEN 'unique' END,
                                CASE WHEN i.indnullsnotdistinct THEN 'nulls' END,
                                CASE WHEN i.indisprimary THEN 'primary' END,
                                CASE WHEN i.indisexclusion THEN 'excludes' END,
                                CASE WHEN NOT i.indimmediate THEN 'deferrable' END,
                                CASE WHEN i.indisreplident THEN 'identity' END,
                                CASE WHEN i.indpred IS NOT NULL OR i.indexprs IS NOT NULL
                                     THEN pg_catalog.regexp_replace(
                                        pg_catalog.concat_ws(' ', i.indpred, i.indexprs),
                                        ' :location -?[0-9]+', '', 'g') END)
    FROM relation AS r
    JOIN pg_catalog.pg_index AS i ON i.indrelid = r.oid AND (i.indisvalid OR r.relkind = 'p')
    JOIN pg_catalog.pg_class AS c ON c.oid = i.indexrelid
    UNION ALL
    -- The statistics that a column of an index is to have.
    SELECT r.schema, r.name,
           pg_catalog.concat_ws(' ', 'j', i.indrelid, c.relname, a.attnum, a.attstattarget)
    FROM pg_catalog.pg_index AS i
    JOIN relation AS r ON r.oid = i.indrelid
    JOIN pg_catalog.pg_class AS c ON c.oid = i.indexrelid
    JOIN pg_catalog.pg_attribute AS a ON a.attrelid = c.oid AND a.attstattarget >= 0
    WHERE i.indexprs IS NOT NULL
    UNION ALL
    SELECT r.schema, r.name,
           pg_catalog.concat_ws(' ', 'c', k.conrelid, k.conname, k.contype, k.conkey, k.confrelid,
                                k.confkey, k.conbin, k.confdelsetcols, k.conexclop,
                                CASE WHEN k.condeferrable THEN 'deferrable' END,
                                CASE WHEN k.condeferred THEN 'deferred' END,
                                CASE WHEN k.convalidated THEN 'valid' END,
                                CASE WHEN k.connoinherit THEN 'alone' END,
                                CASE WHEN k.contype = 'f' THEN pg_catalog.concat_ws(' ',
                                    k.confupdtype, k.confdeltype, k.confmatchtype) END {of_18})
    FROM relation AS r JOIN pg_catalog.pg_constraint AS k ON k.conrelid = r.oid
    UNION ALL
    -- A foreign key's own triggers do not count, unless they are disabled.
    SELECT r.schema, r.name, pg_catalog.concat_ws(' ', 't', t.tgrelid, t.oid, t.xmin)
    FROM relation AS r JOIN pg_catalog.pg_trigger AS t
        ON t.tgrelid = r.oid AND (NOT t.tgisinternal OR t.tgenabled <> 'O')
)

-- name: kind
-- Part of that: the objects of one kind, whose rows no command of use writes
UNION ALL
SELECT k.oid, s.name, {label} || k.{name}, k.xmin
FROM pg_catalog.{catalog} AS k JOIN schema AS s ON s.oid = k.{namespace}

-- name: part
-- Part of that: the rows of a catalog that belong to relations, or to what is made there
UNION ALL
SELECT o.schema, o.name, pg_catalog.concat_ws(' ', {label}, p.{key}, p.xmin)
FROM {owner} AS o JOIN pg_catalog.{catalog} AS p ON p.{key} = o.oid

-- name: digest
-- A digest of that
{said}
SELECT pg_catalog.count(*) || ' ' || coalesce(pg_catalog.sum(pg_catalog.hashtextextended(what, 0)), 0)
FROM said

-- name: parts
-- The same of each object, to name those that have changed
{said}
SELECT schema, object, pg_catalog.sum(pg_catalog.hashtextextended(what, 0))::text
FROM said GROUP BY schema, object

-- name: changing
-- Which processes have changed a relation or a function there and have not committed: GRANT and ALTER
-- FUNCTION hold no lock. None is a prepared transaction
SELECT DISTINCT l.pid
FROM (
    SELECT c.xmax FROM pg_catalog.pg_class AS c
    JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace AND n.nspname IN ({schemas})
    UNION ALL
    SELECT p.xmax FROM pg_catalog.pg_proc AS p
    JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace AND n.nspname IN ({schemas})
) AS changed
JOIN pg_catalog.pg_locks AS l ON l.transactionid = changed.xmax
WHERE l.locktype = 'transactionid' AND l.granted AND l.mode = 'ExclusiveLock'

-- name: scope
-- Where the structure of these schemas is written: their OIDs, those of all that is in them, the
-- catalogs of that, and some transaction of the past
WITH schema AS MATERIALIZED (
    SELECT oid, xmin FROM pg_catalog.pg_namespace WHERE nspname IN ({schemas})
), made AS MATERIALIZED (
    SELECT d.classid, d.objid FROM pg_catalog.pg_depend AS d JOIN schema AS s ON s.oid = d.refobjid
    WHERE d.refclassid = 'pg_catalog.pg_namespace'::pg_catalog.regclass
)
SELECT array(SELECT oid::bigint FROM schema),
       array(SELECT objid::bigint FROM made
             UNION
             SELECT c.oid::bigint FROM pg_catalog.pg_class AS c JOIN schema AS s ON s.oid = c.relnamespace
             UNION
             SELECT c.reltoastrelid::bigint
             FROM pg_catalog.pg_class AS c JOIN schema AS s ON s.oid = c.relnamespace
             WHERE c.reltoastrelid <> 0
             UNION
             SELECT t.oid::bigint FROM pg_catalog.pg_type AS t JOIN schema AS s ON s.oid = t.typnamespace
             ORDER BY 1),
       array(SELECT relname::text FROM pg_catalog.pg_class WHERE oid IN (SELECT classid FROM made)),
       (SELECT max(xmin::text) FROM schema)

-- name: versions
-- How many rows there are of it, how many that somebody is changing, and a sum of the ages of those who
-- wrote them, counted from one of the past. Whatever is made in a schema is a row of pg_depend
WITH run AS NOT MATERIALIZED (
    SELECT * FROM ROWS FROM (pg_catalog.unnest({first}::oid[]), pg_catalog.unnest({last}::oid[]))
    AS r (first, last)
)
SELECT pg_catalog.concat_ws(' ', pg_catalog.count(*),
                            pg_catalog.count(*) FILTER (WHERE changed <> '0'::xid),
                            pg_catalog.sum(pg_catalog.age(written))
                                - pg_catalog.count(*) * pg_catalog.age({since}::xid),
                            (SELECT pg_catalog.string_agg(  -- but for what a rename changes
                                pg_catalog.concat_ws(' ', oid, nspowner, nspacl, xmax), ' ' ORDER BY oid)
                             FROM pg_catalog.pg_namespace WHERE oid = ANY ({namespaces}::oid[])))
FROM (
    SELECT xmin, xmax FROM pg_catalog.pg_depend
    WHERE refclassid = 'pg_catalog.pg_namespace'::pg_catalog.regclass
      AND refobjid = ANY ({namespaces}::oid[])
    UNION ALL
    {each}
) AS one (written, changed)

-- name: version
-- Part of that: the rows of one catalog
SELECT c.xmin, c.xmax FROM run AS r JOIN pg_catalog.{catalog} AS c ON c.{key} BETWEEN r.first AND r.last
