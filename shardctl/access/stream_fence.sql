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

-- name: digest
-- A digest of all that a copy has of the structure of these schemas. A rewriting ALTER leaves the
-- structure equal and the stream without its rows, but not `xmin`. A rename writes the rows of
-- schemas anew, a vacuum those of relations, REINDEX CONCURRENTLY those of indexes and constraints,
-- and forgets where their expressions stood in a statement: of these, values count. pg_dump copies no comments here, and no index that is invalid
WITH schema AS MATERIALIZED (
    SELECT oid, nspowner, nspacl FROM pg_catalog.pg_namespace WHERE nspname IN ({schemas})
), relation AS MATERIALIZED (
    SELECT c.oid, c.relkind, c.reltoastrelid,
           pg_catalog.concat_ws(' ', c.relname, c.relkind, c.relpersistence, c.relreplident,
                                c.relrowsecurity, c.relforcerowsecurity, c.relispartition,
                                c.relpartbound, c.relowner, c.relacl, c.relispopulated,
                                c.reloptions, c.reltablespace, c.relam, c.reloftype) AS said
    FROM pg_catalog.pg_class AS c
    WHERE c.relnamespace IN (SELECT oid FROM schema)
      AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S', 'c')
), type AS MATERIALIZED (
    SELECT t.oid, t.xmin AS written FROM pg_catalog.pg_type AS t
    WHERE t.typnamespace IN (SELECT oid FROM schema)
      AND (t.typtype IN ('d', 'e', 'r', 'm', 'p') OR t.typtype = 'b' AND t.typcategory <> 'A'
           OR t.typrelid IN (SELECT oid FROM relation WHERE relkind = 'c'))
), said (what) AS (
    SELECT pg_catalog.concat_ws(' ', oid, said) FROM relation
    UNION ALL
    SELECT pg_catalog.concat_ws(' ', 'n', oid, nspowner, nspacl) FROM schema
    UNION ALL
    SELECT pg_catalog.concat_ws(' ', 'o', r.oid, o.reloptions)
    FROM relation AS r JOIN pg_catalog.pg_class AS o ON o.oid = r.reltoastrelid
    WHERE o.reloptions IS NOT NULL
    UNION ALL
    SELECT pg_catalog.concat_ws(' ', 'y', oid, written) FROM type
    UNION ALL
    SELECT pg_catalog.concat_ws(' ', 'e', e.oid, e.xmin)
    FROM type AS y JOIN pg_catalog.pg_enum AS e ON e.enumtypid = y.oid
    UNION ALL
    SELECT pg_catalog.concat_ws(' ', 'k', k.oid, k.xmin)
    FROM type AS y JOIN pg_catalog.pg_constraint AS k ON k.contypid = y.oid
    UNION ALL
    SELECT pg_catalog.concat_ws(' ', 'l', l.oid, l.xmin)
    FROM relation AS r JOIN pg_catalog.pg_policy AS l ON l.polrelid = r.oid
    UNION ALL
    SELECT pg_catalog.concat_ws(' ', 'w', w.oid, w.xmin)
    FROM relation AS r JOIN pg_catalog.pg_rewrite AS w ON w.ev_class = r.oid
    UNION ALL
    SELECT pg_catalog.concat_ws(' ', 's', s.seqrelid, s.xmin)
    FROM relation AS r JOIN pg_catalog.pg_sequence AS s ON s.seqrelid = r.oid
    UNION ALL
    SELECT pg_catalog.concat_ws(' ', 'x', x.oid, x.xmin)
    FROM relation AS r JOIN pg_catalog.pg_statistic_ext AS x ON x.stxrelid = r.oid
    UNION ALL
    SELECT pg_catalog.concat_ws(' ', 'g', g.oid, g.xmin)
    FROM pg_catalog.pg_default_acl AS g WHERE g.defaclnamespace IN (SELECT oid FROM schema)
    UNION ALL
    SELECT pg_catalog.concat_ws(' ', 'a', a.attrelid, a.attnum, a.xmin)
    FROM relation AS r JOIN pg_catalog.pg_attribute AS a ON a.attrelid = r.oid AND a.attnum > 0
    UNION ALL
    SELECT pg_catalog.concat_ws(' ', 'd', d.adrelid, d.adnum, d.adbin)
    FROM relation AS r JOIN pg_catalog.pg_attrdef AS d ON d.adrelid = r.oid
    UNION ALL
    SELECT pg_catalog.concat_ws(' ', 'i', i.indrelid, c.relname, c.relam, c.reltablespace,
                                c.reloptions, i.indnkeyatts, i.indkey, i.indclass, i.indcollation,
                                i.indoption,
                                CASE WHEN i.indisunique THEN 'unique' END,
                                CASE WHEN i.indnullsnotdistinct THEN 'nulls' END,
                                CASE WHEN i.indisprimary THEN 'primary' END,
                                CASE WHEN i.indisexclusion THEN 'excludes' END,
                                CASE WHEN NOT i.indimmediate THEN 'deferrable' END,
                                CASE WHEN i.indisclustered THEN 'clustered' END,
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
    SELECT pg_catalog.concat_ws(' ', 'j', i.indrelid, c.relname, a.attnum, a.attstattarget)
    FROM pg_catalog.pg_index AS i
    JOIN relation AS r ON r.oid = i.indrelid
    JOIN pg_catalog.pg_class AS c ON c.oid = i.indexrelid
    JOIN pg_catalog.pg_attribute AS a ON a.attrelid = c.oid AND a.attstattarget >= 0
    WHERE i.indexprs IS NOT NULL
    UNION ALL
    SELECT pg_catalog.concat_ws(' ', 'c', k.conrelid, k.conname, k.contype, k.conkey, k.confrelid,
                                k.confkey, k.conbin, k.confdelsetcols, k.conexclop,
                                CASE WHEN k.condeferrable THEN 'deferrable' END,
                                CASE WHEN k.condeferred THEN 'deferred' END,
                                CASE WHEN k.convalidated THEN 'valid' END,
                                CASE WHEN k.connoinherit THEN 'alone' END,
                                CASE WHEN k.contype = 'f' THEN pg_catalog.concat_ws(' ',
                                    k.confupdtype, k.confdeltype, k.confmatchtype) END {of_18})
    FROM relation AS r JOIN pg_catalog.pg_constraint AS k ON k.conrelid = r.oid
    UNION ALL
    SELECT pg_catalog.concat_ws(' ', 't', t.tgrelid, t.oid, t.xmin)
    FROM relation AS r JOIN pg_catalog.pg_trigger AS t ON t.tgrelid = r.oid AND NOT t.tgisinternal
    UNION ALL
    SELECT pg_catalog.concat_ws(' ', 'p', p.oid, p.xmin)
    FROM pg_catalog.pg_proc AS p WHERE p.pronamespace IN (SELECT oid FROM schema)
    UNION ALL
    SELECT pg_catalog.concat_ws(' ', 'q', q.oid, q.xmin)
    FROM pg_catalog.pg_operator AS q WHERE q.oprnamespace IN (SELECT oid FROM schema)
    UNION ALL
    SELECT pg_catalog.concat_ws(' ', 'h', h.oid, h.xmin)
    FROM pg_catalog.pg_opclass AS h WHERE h.opcnamespace IN (SELECT oid FROM schema)
    UNION ALL
    SELECT pg_catalog.concat_ws(' ', 'f', f.oid, f.xmin)
    FROM pg_catalog.pg_opfamily AS f WHERE f.opfnamespace IN (SELECT oid FROM schema)
    UNION ALL
    SELECT pg_catalog.concat_ws(' ', 'u', u.oid, u.xmin)
    FROM pg_catalog.pg_collation AS u WHERE u.collnamespace IN (SELECT oid FROM schema)
    UNION ALL
    SELECT pg_catalog.concat_ws(' ', 'v', v.oid, v.xmin)
    FROM pg_catalog.pg_conversion AS v WHERE v.connamespace IN (SELECT oid FROM schema)
    UNION ALL
    SELECT pg_catalog.concat_ws(' ', 'z', z.oid, z.xmin, m.mapseqno, m.maptokentype, m.mapdict)
    FROM pg_catalog.pg_ts_config AS z
    LEFT JOIN pg_catalog.pg_ts_config_map AS m ON m.mapcfg = z.oid
    WHERE z.cfgnamespace IN (SELECT oid FROM schema)
    UNION ALL
    SELECT pg_catalog.concat_ws(' ', 'b', b.oid, b.xmin)
    FROM pg_catalog.pg_ts_dict AS b WHERE b.dictnamespace IN (SELECT oid FROM schema)
)
SELECT pg_catalog.count(*) || ' ' || coalesce(pg_catalog.sum(pg_catalog.hashtextextended(what, 0)), 0)
FROM said
