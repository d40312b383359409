-- check: replica identities
-- about: a stream can name each row that clients update or delete
-- at: source
-- again: copy
-- stream:
--   no_replica_identity:
--     says: it has tables without a replica identity, so clients could not update or delete their rows
--       during the move
--     hint: give each a primary key that is not deferrable, run ALTER TABLE ... REPLICA IDENTITY FULL, or
--       use --method clone
--   generated_identity:
--     says: it has tables whose replica identity has a generated column, which is not replicated
--     hint: run ALTER TABLE ... REPLICA IDENTITY USING INDEX with another unique index, or use --method
--       clone
--   generated_identity_full:
--     says: it has tables with REPLICA IDENTITY FULL and generated columns, which are not replicated
--     hint: give each a primary key and REPLICA IDENTITY DEFAULT, or use --method clone
--   identity_without_equality:
--     says: it has tables with REPLICA IDENTITY FULL and columns whose types cannot be compared
--     hint: give each a primary key and REPLICA IDENTITY DEFAULT, or use --method clone
--   identity_full:
--     says: 'tables with REPLICA IDENTITY FULL: {names}; for each UPDATE and DELETE, node {target} may
--       read the whole table to find the row'
WITH RECURSIVE moved AS MATERIALIZED (
    SELECT c.oid, n.nspname || '.' || c.relname AS name, c.relreplident = 'f' AS is_full,
           pg_get_replica_identity_index(c.oid) AS index
    FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
    JOIN unnest(%(schemas)s::name[]) AS u (name) ON u.name = n.nspname
    WHERE c.relkind = 'r'
), part (relation, attribute, type) AS (
    -- Of tables with all columns: the types that values are made of.
    SELECT m.oid, a.attname, a.atttypid FROM moved AS m
    JOIN pg_attribute AS a ON a.attrelid = m.oid AND a.attnum > 0 AND NOT a.attisdropped
    WHERE m.is_full
    UNION
    SELECT p.relation, p.attribute, inner_type.oid FROM part AS p
    JOIN pg_type AS t ON t.oid = p.type
    CROSS JOIN LATERAL (
        SELECT t.typbasetype AS oid WHERE t.typtype = 'd'
        UNION ALL SELECT t.typelem WHERE t.typtype = 'b' AND t.typlen = -1 AND t.typelem <> 0
        UNION ALL SELECT c.atttypid FROM pg_attribute AS c
                  WHERE t.typtype = 'c' AND c.attrelid = t.typrelid
                    AND c.attnum > 0 AND NOT c.attisdropped
    ) AS inner_type
), unequal AS (
    -- What apply compares: the equality of a default operator class.
    SELECT p.relation, min(p.attribute::text) AS attribute FROM part AS p
    JOIN pg_type AS t ON t.oid = p.type
    WHERE t.typtype = 'b' AND NOT (t.typlen = -1 AND t.typelem <> 0) AND NOT EXISTS (
        SELECT FROM pg_opclass AS o JOIN pg_am AS a ON a.oid = o.opcmethod
        WHERE o.opcdefault AND a.amname IN ('btree', 'hash')
          AND (o.opcintype = t.oid
               OR EXISTS (SELECT FROM pg_cast AS k
                          WHERE k.castsource = t.oid AND k.casttarget = o.opcintype
                            AND k.castmethod = 'b' AND k.castcontext = 'i')))
    GROUP BY p.relation
), judged AS (
    SELECT m.name, u.attribute,
           CASE WHEN m.is_full AND EXISTS (SELECT FROM pg_attribute AS a
                                           WHERE a.attrelid = m.oid AND a.attgenerated <> ''
                                             AND NOT a.attisdropped) THEN 'generated_identity_full'
                WHEN u.relation IS NOT NULL THEN 'identity_without_equality'
                WHEN m.is_full THEN 'identity_full'
                WHEN m.index IS NULL THEN 'no_replica_identity'
                WHEN EXISTS (SELECT FROM pg_index AS i
                             JOIN pg_attribute AS a ON a.attrelid = i.indrelid
                                                   AND a.attnum = ANY (i.indkey)
                             WHERE i.indexrelid = m.index AND a.attgenerated <> '')
                THEN 'generated_identity' END AS verdict
    FROM moved AS m LEFT JOIN unequal AS u ON u.relation = m.oid
)
SELECT verdict, name || coalesce(' (column ' || attribute || ')', '') FROM judged
WHERE verdict IS NOT NULL ORDER BY 1, 2

-- check: publications
-- about: no publication takes in what the move makes
-- at: each
-- again: copy
-- stream:
--   wide_publications:
--     says: 'it has publications FOR ALL TABLES or IN SCHEMA: {names}; their subscribers would get what
--       the move writes there'
--     hint: 'publish a list of tables instead: CREATE PUBLICATION ... FOR TABLE ...'
SELECT 'wide_publications', pubname::text FROM pg_publication WHERE puballtables
UNION
SELECT 'wide_publications', p.pubname::text FROM pg_publication AS p
JOIN pg_publication_namespace AS s ON s.pnpubid = p.oid
JOIN pg_namespace AS n ON n.oid = s.pnnspid
WHERE n.nspname = 'shardctl' OR n.nspname = ANY (%(schemas)s::name[])
ORDER BY 2

-- check: kinds of objects
-- about: the shards have nothing that a stream loses or stops at
-- at: source
-- again: copy
-- stream:
--   foreign_tables:
--     says: it has foreign tables in moved shards, whose rows are elsewhere
--     hint: drop them, or use --method clone
--   materialized_views:
--     says: it has populated materialized views in moved shards, which would arrive empty
--     hint: DROP them, or REFRESH MATERIALIZED VIEW ... WITH NO DATA, until the move is over, then REFRESH
--       them on the target; or use --method clone
--   enum_hashes:
--     says: it has tables that are hash-partitioned by an enum, whose hash differs between servers
--     hint: use --method clone
--   forced_row_security:
--     says: it has tables with FORCE ROW LEVEL SECURITY, which hides rows from the copy
--     hint: ALTER TABLE ... NO FORCE ROW LEVEL SECURITY until the move is over, or use --method clone
--   always_triggers:
--     says: it has triggers that also fire for replicated rows (ENABLE ALWAYS or REPLICA), which would run
--       a second time on the target
--     hint: ALTER TABLE ... ENABLE TRIGGER (without ALWAYS), or use --method clone
--   extensions_inside:
--     says: it has extensions in moved schemas, which a streamed move does not copy
--     hint: ALTER EXTENSION ... SET SCHEMA public, or use --method clone
WITH RECURSIVE moved AS MATERIALIZED (
    SELECT n.oid, n.nspname FROM pg_namespace AS n
    JOIN unnest(%(schemas)s::name[]) AS u (name) ON u.name = n.nspname
), relation AS MATERIALIZED (
    SELECT c.*, m.nspname || '.' || c.relname AS name
    FROM pg_class AS c JOIN moved AS m ON m.oid = c.relnamespace
), hashed (name, type) AS (
    -- Of hash keys with PostgreSQL's own hash: the types that values are made of.
    SELECT r.name, given.type FROM relation AS r
    JOIN pg_partitioned_table AS p ON p.partrelid = r.oid AND p.partstrat = 'h'
    CROSS JOIN LATERAL unnest(p.partattrs::smallint[], p.partclass::oid[]) AS k (number, class)
    JOIN pg_opclass AS o ON o.oid = k.class AND o.oid < 16384
    JOIN pg_type AS i ON i.oid = o.opcintype
    -- What an expression is made of is not written down: as if of all columns.
    LEFT JOIN pg_attribute AS a ON a.attrelid = r.oid AND NOT a.attisdropped
        AND (a.attnum = k.number OR k.number = 0 AND i.typtype = 'p' AND a.attnum > 0)
    CROSS JOIN LATERAL (VALUES (i.oid), (a.atttypid)) AS given (type)
    UNION
    SELECT u.name, inner_type.oid FROM hashed AS u
    JOIN pg_type AS t ON t.oid = u.type
    CROSS JOIN LATERAL (
        SELECT t.typbasetype AS oid WHERE t.typtype = 'd'
        UNION ALL SELECT t.typelem WHERE t.typtype = 'b' AND t.typlen = -1 AND t.typelem <> 0
        UNION ALL SELECT g.rngsubtype FROM pg_range AS g WHERE t.oid IN (g.rngtypid, g.rngmultitypid)
        UNION ALL SELECT c.atttypid FROM pg_attribute AS c
                  WHERE t.typtype = 'c' AND c.attrelid = t.typrelid
                    AND c.attnum > 0 AND NOT c.attisdropped
    ) AS inner_type
)
SELECT 'enum_hashes', u.name FROM hashed AS u JOIN pg_type AS t ON t.oid = u.type
WHERE t.typtype = 'e' OR t.oid = 'anyenum'::regtype
UNION SELECT 'foreign_tables', name FROM relation WHERE relkind = 'f'
UNION SELECT 'materialized_views', name FROM relation WHERE relkind = 'm' AND relispopulated
UNION SELECT 'forced_row_security', name FROM relation WHERE relforcerowsecurity
UNION SELECT 'always_triggers', t.tgname || ' on ' || r.name
      FROM pg_trigger AS t JOIN relation AS r ON r.oid = t.tgrelid
      WHERE NOT t.tgisinternal AND t.tgenabled IN ('A', 'R')
        AND t.tgname NOT IN ('shardctl_read_only', 'shardctl_read_only_row')
UNION SELECT 'extensions_inside', e.extname || ' in ' || m.nspname
      FROM pg_extension AS e JOIN moved AS m ON m.oid = e.extnamespace
ORDER BY 1, 2
