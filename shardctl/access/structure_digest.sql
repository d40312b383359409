-- name: said
-- Part of other queries: all that a copy has of the structure of these schemas, by object. A rewriting
-- ALTER leaves the structure equal and the stream without its rows, but not `xmin`. A rename writes
-- the rows of schemas anew, a vacuum those of relations: of these, values count
WITH schema AS MATERIALIZED (
    SELECT oid, nspname::text AS name, nspowner, nspacl FROM pg_catalog.pg_namespace
    WHERE nspname IN ({schemas})
), running AS MATERIALIZED (
    SELECT transactionid AS xid FROM pg_catalog.pg_locks
    WHERE locktype = 'transactionid' AND granted AND mode = 'ExclusiveLock'
), relation AS MATERIALIZED (
    SELECT c.oid, s.name AS schema, c.relname::text AS name, c.relkind,
           pg_catalog.concat_ws(' ', c.relname, c.relkind, c.relpersistence, c.relreplident,
                                c.relrowsecurity, c.relforcerowsecurity, c.relispartition,
                                c.relpartbound, c.relowner, c.relacl, c.relispopulated,
                                c.reloptions, c.relam, c.reltablespace,
                                -- A GRANT that is not committed holds no lock.
                                c.xmax IN (SELECT xid FROM running)) AS said
    FROM pg_catalog.pg_class AS c JOIN schema AS s ON s.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S', 'c')
), type AS MATERIALIZED (
    SELECT t.oid, s.name AS schema, 'type ' || t.typname AS name, t.xmin AS written
    FROM pg_catalog.pg_type AS t JOIN schema AS s ON s.oid = t.typnamespace
    WHERE t.typtype IN ('d', 'e', 'r', 'm')
), said (schema, object, what) AS (
    SELECT schema, name, pg_catalog.concat_ws(' ', oid, said) FROM relation
    UNION ALL
    SELECT name, '', pg_catalog.concat_ws(' ', 'n', oid, nspowner, nspacl) FROM schema
    UNION ALL
    SELECT schema, name, pg_catalog.concat_ws(' ', 'y', oid, written) FROM type
    UNION ALL
    SELECT y.schema, y.name, pg_catalog.concat_ws(' ', 'e', e.oid, e.xmin)
    FROM type AS y JOIN pg_catalog.pg_enum AS e ON e.enumtypid = y.oid
    UNION ALL
    SELECT y.schema, y.name, pg_catalog.concat_ws(' ', 'k', k.oid, k.xmin)
    FROM type AS y JOIN pg_catalog.pg_constraint AS k ON k.contypid = y.oid
    UNION ALL
    SELECT r.schema, r.name, pg_catalog.concat_ws(' ', 'l', l.oid, l.xmin)
    FROM relation AS r JOIN pg_catalog.pg_policy AS l ON l.polrelid = r.oid
    UNION ALL
    SELECT r.schema, r.name, pg_catalog.concat_ws(' ', 'w', w.oid, w.xmin)
    FROM relation AS r JOIN pg_catalog.pg_rewrite AS w ON w.ev_class = r.oid
    UNION ALL
    SELECT r.schema, r.name, pg_catalog.concat_ws(' ', 's', s.seqrelid, s.xmin)
    FROM relation AS r JOIN pg_catalog.pg_sequence AS s ON s.seqrelid = r.oid
    UNION ALL
    SELECT r.schema, r.name, pg_catalog.concat_ws(' ', 'x', x.oid, x.xmin)
    FROM relation AS r JOIN pg_catalog.pg_statistic_ext AS x ON x.stxrelid = r.oid
    UNION ALL
    SELECT s.name, '', pg_catalog.concat_ws(' ', 'g', g.oid, g.xmin)
    FROM pg_catalog.pg_default_acl AS g JOIN schema AS s ON s.oid = g.defaclnamespace
    UNION ALL
    SELECT r.schema, r.name, pg_catalog.concat_ws(' ', 'a', a.attrelid, a.attnum, a.xmin)
    FROM relation AS r JOIN pg_catalog.pg_attribute AS a ON a.attrelid = r.oid AND a.attnum > 0
    UNION ALL
    SELECT r.schema, r.name, pg_catalog.concat_ws(' ', 'd', d.adrelid, d.adnum, d.adbin)
    FROM relation AS r JOIN pg_catalog.pg_attrdef AS d ON d.adrelid = r.oid
    UNION ALL
    -- An invalid index is not copied, and one that is built again is the same index.
    SELECT r.schema, r.name,
           pg_catalog.concat_ws(' ', 'i', i.indrelid, c.relname, c.relam, c.reloptions, i.indisunique,
                                i.indisprimary, i.indisexclusion, i.indimmediate, i.indisreplident,
                                i.indnullsnotdistinct, i.indkey, i.indclass, i.indcollation,
                                i.indoption, i.indpred, i.indexprs)
    FROM relation AS r
    JOIN pg_catalog.pg_index AS i ON i.indrelid = r.oid AND (i.indisvalid OR r.relkind = 'p')
    JOIN pg_catalog.pg_class AS c ON c.oid = i.indexrelid
    UNION ALL
    SELECT r.schema, r.name,
           pg_catalog.concat_ws(' ', 'c', k.conrelid, k.conname, k.contype, k.condeferrable,
                                k.condeferred, k.convalidated, k.confupdtype, k.confdeltype, k.conkey,
                                k.confrelid, k.confkey, k.conbin)
    FROM relation AS r JOIN pg_catalog.pg_constraint AS k ON k.conrelid = r.oid
    UNION ALL
    -- A foreign key's own triggers do not count, unless somebody has disabled them.
    SELECT r.schema, r.name,
           pg_catalog.concat_ws(' ', 't', t.tgrelid, t.tgname, t.tgfoid, t.tgtype, t.tgenabled,
                                t.tgattr, t.tgqual, pg_catalog.encode(t.tgargs, 'hex'))
    FROM relation AS r JOIN pg_catalog.pg_trigger AS t
        ON t.tgrelid = r.oid AND (NOT t.tgisinternal OR t.tgenabled <> 'O')
    UNION ALL
    SELECT r.schema, r.name, pg_catalog.concat_ws(' ', 'm', d.objoid, d.objsubid, d.description)
    FROM relation AS r JOIN pg_catalog.pg_description AS d
        ON d.objoid = r.oid AND d.classoid = 'pg_catalog.pg_class'::pg_catalog.regclass
    UNION ALL
    SELECT s.name, 'function ' || p.proname,
           pg_catalog.concat_ws(' ', 'p', p.oid, p.xmin, p.xmax IN (SELECT xid FROM running))
    FROM pg_catalog.pg_proc AS p JOIN schema AS s ON s.oid = p.pronamespace
)

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
