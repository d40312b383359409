-- name: note
-- What the structure of the moved shards is when it is copied; nothing publishes this row
INSERT INTO shardctl.stream (move, attempt, what, note)
VALUES (%(move)s, 0, 'structure', %(note)s)
ON CONFLICT (move, attempt, what) DO UPDATE SET note = excluded.note, at = clock_timestamp()

-- name: noted
-- What it was then, and the same of each object
SELECT note->>'digest', note->'parts' FROM shardctl.stream
WHERE move = %(move)s AND attempt = 0 AND what = 'structure'

-- name: dependencies
-- What binds objects of moved, of staying and of other schemas to each other, by OID
WITH schema AS MATERIALIZED (
    SELECT n.oid, u.side FROM pg_namespace AS n
    JOIN (SELECT name, 1 FROM unnest(%(moved)s::name[]) AS m (name)
          UNION ALL SELECT name, 2 FROM unnest(%(staying)s::name[]) AS s (name)) AS u (name, side)
      ON u.name = n.nspname
), placed AS (
    SELECT 'pg_class'::regclass AS classid, oid AS objid, relnamespace AS namespace FROM pg_class
    UNION ALL SELECT 'pg_type'::regclass, oid, typnamespace FROM pg_type
    UNION ALL SELECT 'pg_proc'::regclass, oid, pronamespace FROM pg_proc
    UNION ALL SELECT 'pg_constraint'::regclass, oid, connamespace FROM pg_constraint
    UNION ALL SELECT 'pg_operator'::regclass, oid, oprnamespace FROM pg_operator
    UNION ALL SELECT 'pg_opclass'::regclass, oid, opcnamespace FROM pg_opclass
    UNION ALL SELECT 'pg_opfamily'::regclass, oid, opfnamespace FROM pg_opfamily
    UNION ALL SELECT 'pg_collation'::regclass, oid, collnamespace FROM pg_collation
    UNION ALL SELECT 'pg_conversion'::regclass, oid, connamespace FROM pg_conversion
    UNION ALL SELECT 'pg_statistic_ext'::regclass, oid, stxnamespace FROM pg_statistic_ext
    UNION ALL SELECT 'pg_ts_config'::regclass, oid, cfgnamespace FROM pg_ts_config
    UNION ALL SELECT 'pg_ts_dict'::regclass, oid, dictnamespace FROM pg_ts_dict
    UNION ALL SELECT 'pg_ts_parser'::regclass, oid, prsnamespace FROM pg_ts_parser
    UNION ALL SELECT 'pg_ts_template'::regclass, oid, tmplnamespace FROM pg_ts_template
    -- A range type has one to its multirange.
    UNION ALL SELECT 'pg_cast'::regclass, k.oid, s.typnamespace
              FROM pg_cast AS k JOIN pg_type AS s ON s.oid = k.castsource
              JOIN pg_type AS t ON t.oid = k.casttarget AND t.typnamespace = s.typnamespace
    UNION ALL SELECT 'pg_amop'::regclass, a.oid, f.opfnamespace
              FROM pg_amop AS a JOIN pg_opfamily AS f ON f.oid = a.amopfamily
    UNION ALL SELECT 'pg_amproc'::regclass, a.oid, f.opfnamespace
              FROM pg_amproc AS a JOIN pg_opfamily AS f ON f.oid = a.amprocfamily
    UNION ALL SELECT part.classid, part.oid, c.relnamespace
              FROM (SELECT 'pg_attrdef'::regclass, oid, adrelid FROM pg_attrdef
                    UNION ALL SELECT 'pg_rewrite'::regclass, oid, ev_class FROM pg_rewrite
                    UNION ALL SELECT 'pg_trigger'::regclass, oid, tgrelid FROM pg_trigger
                    UNION ALL SELECT 'pg_policy'::regclass, oid, polrelid FROM pg_policy
                   ) AS part (classid, oid, relation)
              JOIN pg_class AS c ON c.oid = part.relation
), inside AS MATERIALIZED (
    SELECT p.classid, p.objid, s.side FROM placed AS p JOIN schema AS s ON s.oid = p.namespace
), crossing AS (
    SELECT DISTINCT ON (d.classid, d.objid) d.*
    FROM pg_depend AS d
    LEFT JOIN inside AS a ON a.classid = d.classid AND a.objid = d.objid
    LEFT JOIN inside AS b ON b.classid = d.refclassid AND b.objid = d.refobjid
    WHERE a.side IS DISTINCT FROM b.side
      AND CASE
          WHEN b.side IS NOT NULL THEN
              -- From outside, anything: it writes behind the fence, or keeps prune from dropping.
              -- But publications follow names, the key itself reports a foreign key's triggers,
              -- and a TOAST table is in a schema of its own.
              d.classid NOT IN ('pg_publication_rel'::regclass)
              AND NOT (d.classid = 'pg_trigger'::regclass AND d.deptype IN ('i', 'P', 'S'))
              AND NOT (d.classid = 'pg_class'::regclass
                       AND d.objid IN (SELECT oid FROM pg_class WHERE relkind = 't'))
          ELSE
              -- From inside: children and partitions, sequences that a column elsewhere owns,
              -- and rows that another table's change changes or deletes.
              (d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass)
              OR (d.classid = 'pg_constraint'::regclass AND d.refclassid = 'pg_class'::regclass
                  AND d.objid IN (SELECT oid FROM pg_constraint
                                  WHERE contype = 'f' AND (confdeltype IN ('c', 'n', 'd')
                                                           OR confupdtype IN ('c', 'n', 'd'))))
          END
    ORDER BY d.classid, d.objid, d.refobjsubid DESC  -- a column says more than an index
), told AS (
    SELECT *, count(*) OVER () AS total FROM crossing LIMIT %(shown)s
)
SELECT pg_describe_object(classid, objid, 0), pg_describe_object(refclassid, refobjid, 0), total
FROM told
