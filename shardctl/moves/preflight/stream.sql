-- name: identities
-- Moved tables whose rows a stream cannot name, or names by all their columns, and why
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
                                             AND NOT a.attisdropped) THEN 'full_generated'
                WHEN u.relation IS NOT NULL THEN 'full_unequal'
                WHEN m.is_full THEN 'full'
                WHEN m.index IS NULL THEN 'none'
                WHEN EXISTS (SELECT FROM pg_index AS i
                             JOIN pg_attribute AS a ON a.attrelid = i.indrelid
                                                   AND a.attnum = ANY (i.indkey)
                             WHERE i.indexrelid = m.index AND a.attgenerated <> '')
                THEN 'index_generated' END AS verdict
    FROM moved AS m LEFT JOIN unequal AS u ON u.relation = m.oid
)
SELECT verdict, name || coalesce(' (column ' || attribute || ')', '') FROM judged
WHERE verdict IS NOT NULL ORDER BY 1, 2

-- name: tables
-- How many tables the moved schemas have
SELECT count(*) FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
JOIN unnest(%(schemas)s::name[]) AS u (name) ON u.name = n.nspname WHERE c.relkind IN ('r', 'p')

-- name: kinds
-- What of the moved schemas no stream carries, or would stop at, by kind
WITH RECURSIVE moved AS MATERIALIZED (
    SELECT n.oid, n.nspname FROM pg_namespace AS n
    JOIN unnest(%(schemas)s::name[]) AS u (name) ON u.name = n.nspname
), relation AS MATERIALIZED (
    SELECT c.*, m.nspname || '.' || c.relname AS name
    FROM pg_class AS c JOIN moved AS m ON m.oid = c.relnamespace
), used (kind, name, type) AS (
    -- Of columns, and of hash keys with PostgreSQL's own hash: the types that values are made of.
    SELECT 'money', r.name, a.atttypid FROM relation AS r
    JOIN pg_attribute AS a ON a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped
    WHERE r.relkind = 'r'
    UNION
    SELECT 'enum_hashes', r.name, given.type FROM relation AS r
    JOIN pg_partitioned_table AS p ON p.partrelid = r.oid AND p.partstrat = 'h'
    CROSS JOIN LATERAL unnest(p.partattrs::smallint[], p.partclass::oid[]) AS k (number, class)
    JOIN pg_opclass AS o ON o.oid = k.class AND o.oid < 16384
    JOIN pg_type AS i ON i.oid = o.opcintype
    -- What an expression is made of is not written down: as if of all columns.
    LEFT JOIN pg_attribute AS a ON a.attrelid = r.oid AND NOT a.attisdropped
        AND (a.attnum = k.number OR k.number = 0 AND i.typtype = 'p' AND a.attnum > 0)
    CROSS JOIN LATERAL (VALUES (i.oid), (a.atttypid)) AS given (type)
    UNION
    SELECT u.kind, u.name, inner_type.oid FROM used AS u
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
SELECT 'money', name FROM used WHERE kind = 'money' AND type = 'money'::regtype
UNION
SELECT 'enum_hashes', u.name FROM used AS u JOIN pg_type AS t ON t.oid = u.type
WHERE u.kind = 'enum_hashes' AND (t.typtype = 'e' OR t.oid = 'anyenum'::regtype)
UNION ALL SELECT 'foreign_tables', name FROM relation WHERE relkind = 'f'
UNION ALL SELECT 'materialized_views', name FROM relation WHERE relkind = 'm' AND relispopulated
UNION ALL SELECT 'forced_row_security', name FROM relation WHERE relforcerowsecurity
UNION ALL SELECT 'always_triggers', t.tgname || ' on ' || r.name
          FROM pg_trigger AS t JOIN relation AS r ON r.oid = t.tgrelid
          WHERE NOT t.tgisinternal AND t.tgenabled IN ('A', 'R')
            AND t.tgname NOT IN ('shardctl_read_only', 'shardctl_read_only_row')
UNION ALL SELECT 'extensions_inside', e.extname || ' in ' || m.nspname
          FROM pg_extension AS e JOIN moved AS m ON m.oid = e.extnamespace
ORDER BY 1, 2

-- name: tablespaces_used
-- Tablespaces that tables and indexes of the moved schemas are in
SELECT DISTINCT s.spcname::text FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace
JOIN unnest(%(schemas)s::name[]) AS u (name) ON u.name = n.nspname
JOIN pg_tablespace AS s ON s.oid = c.reltablespace ORDER BY 1

-- name: tablespaces
-- All tablespaces of a server
SELECT spcname::text FROM pg_tablespace

-- name: wide_publications
-- Publications that take tables in as soon as they are made: in these schemas, or in any
SELECT pubname::text FROM pg_publication WHERE puballtables
UNION
SELECT p.pubname::text FROM pg_publication AS p
JOIN pg_publication_namespace AS s ON s.pnpubid = p.oid
JOIN pg_namespace AS n ON n.oid = s.pnnspid
JOIN unnest(%(schemas)s::name[]) AS u (name) ON u.name = n.nspname
ORDER BY 1

-- name: needs
-- What the moved schemas refer to outside of them, by kind and name
WITH moved AS MATERIALIZED (
    SELECT n.oid, n.nspowner FROM pg_namespace AS n
    JOIN unnest(%(schemas)s::name[]) AS u (name) ON u.name = n.nspname
), inside AS MATERIALIZED (
    SELECT 'pg_class'::regclass AS classid, oid AS objid FROM pg_class
    WHERE relnamespace IN (SELECT oid FROM moved)
    UNION ALL SELECT 'pg_type'::regclass, oid FROM pg_type
              WHERE typnamespace IN (SELECT oid FROM moved)
    UNION ALL SELECT 'pg_proc'::regclass, oid FROM pg_proc
              WHERE pronamespace IN (SELECT oid FROM moved)
    UNION ALL SELECT 'pg_constraint'::regclass, oid FROM pg_constraint
              WHERE connamespace IN (SELECT oid FROM moved)
    UNION ALL SELECT 'pg_namespace'::regclass, oid FROM moved
    UNION ALL SELECT part.classid, part.oid
              FROM (SELECT 'pg_attrdef'::regclass, oid, adrelid FROM pg_attrdef
                    UNION ALL SELECT 'pg_rewrite'::regclass, oid, ev_class FROM pg_rewrite
                    UNION ALL SELECT 'pg_trigger'::regclass, oid, tgrelid FROM pg_trigger
                    UNION ALL SELECT 'pg_policy'::regclass, oid, polrelid FROM pg_policy
                   ) AS part (classid, oid, relation)
              JOIN pg_class AS c ON c.oid = part.relation
              WHERE c.relnamespace IN (SELECT oid FROM moved)
), referred AS MATERIALIZED (
    SELECT DISTINCT d.refclassid, d.refobjid
    FROM pg_depend AS d JOIN inside AS i USING (classid, objid)
), extended AS MATERIALIZED (
    SELECT r.refclassid, r.refobjid, e.refobjid AS extension
    FROM referred AS r
    JOIN pg_depend AS e ON e.classid = r.refclassid AND e.objid = r.refobjid
                       AND e.refclassid = 'pg_extension'::regclass AND e.deptype = 'e'
), own AS (
    SELECT refclassid, refobjid FROM referred
    EXCEPT SELECT refclassid, refobjid FROM extended
)
SELECT DISTINCT 'extension', e.extname::text FROM pg_extension AS e
WHERE e.oid IN (SELECT extension FROM extended
                UNION ALL SELECT refobjid FROM referred
                          WHERE refclassid = 'pg_extension'::regclass)
UNION
-- An array has its element's name and more.
SELECT 'type', coalesce(e.oid, t.oid)::regtype::text
FROM own AS o JOIN pg_type AS t ON t.oid = o.refobjid
LEFT JOIN pg_type AS e ON e.typarray = t.oid
WHERE o.refclassid = 'pg_type'::regclass AND t.typnamespace NOT IN (SELECT oid FROM moved)
UNION
SELECT 'function', p.oid::regprocedure::text FROM own AS o JOIN pg_proc AS p ON p.oid = o.refobjid
WHERE o.refclassid = 'pg_proc'::regclass AND p.pronamespace NOT IN (SELECT oid FROM moved)
  AND p.pronamespace IS DISTINCT FROM to_regnamespace('shardctl')::oid -- those are shardctl's business
UNION
SELECT 'relation', c.oid::regclass::text FROM own AS o JOIN pg_class AS c ON c.oid = o.refobjid
WHERE o.refclassid = 'pg_class'::regclass AND c.relnamespace NOT IN (SELECT oid FROM moved)
  AND c.relnamespace <> 'pg_toast'::regnamespace
UNION
SELECT 'collation', c.oid::regcollation::text
FROM own AS o JOIN pg_collation AS c ON c.oid = o.refobjid
WHERE o.refclassid = 'pg_collation'::regclass
  AND c.collnamespace NOT IN (SELECT oid FROM moved)
UNION
SELECT 'role', r.rolname::text FROM pg_shdepend AS d
JOIN inside AS i ON i.classid = d.classid AND i.objid = d.objid
JOIN pg_roles AS r ON r.oid = d.refobjid
WHERE d.refclassid = 'pg_authid'::regclass
  AND d.dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
UNION
-- On the role that made the server nothing depends.
SELECT 'role', r.rolname::text FROM pg_roles AS r
WHERE r.oid IN (SELECT nspowner FROM moved
                UNION SELECT relowner FROM pg_class WHERE relnamespace IN (SELECT oid FROM moved))
ORDER BY 1, 2

-- name: definitions
-- Which of these things there are here, and what each is like
SELECT 'extension', e.extname::text, e.extversion FROM pg_extension AS e
WHERE e.extname = ANY (%(extension)s::text[])
UNION ALL
SELECT 'type', u.name,
       concat_ws(' ', t.typtype, CASE t.typtype WHEN 'd' THEN t.typbasetype::regtype::text END,
                 CASE WHEN t.typnotnull THEN 'not null' END,
                 (SELECT string_agg(quote_literal(e.enumlabel), ', ' ORDER BY e.enumsortorder)
                  FROM pg_enum AS e WHERE e.enumtypid = t.oid),
                 (SELECT string_agg(a.attname || ' ' || format_type(a.atttypid, a.atttypmod), ', '
                                    ORDER BY a.attnum)
                  FROM pg_attribute AS a
                  WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped),
                 (SELECT string_agg(pg_get_constraintdef(k.oid), ', ' ORDER BY k.conname)
                  FROM pg_constraint AS k WHERE k.contypid = t.oid AND k.contype = 'c'))
FROM unnest(%(type)s::text[]) AS u (name) JOIN pg_type AS t ON t.oid = to_regtype(u.name)
UNION ALL
SELECT 'function', u.name, '' FROM unnest(%(function)s::text[]) AS u (name)
WHERE to_regprocedure(u.name) IS NOT NULL
UNION ALL
SELECT 'relation', u.name, '' FROM unnest(%(relation)s::text[]) AS u (name)
WHERE to_regclass(u.name) IS NOT NULL
UNION ALL
SELECT 'collation', u.name,
       concat_ws(' ', c.collprovider, c.collcollate, c.collctype,
                 coalesce(to_jsonb(c) ->> 'colllocale', to_jsonb(c) ->> 'colliculocale'),
                 CASE WHEN NOT c.collisdeterministic THEN 'nondeterministic' END)
FROM unnest(%(collation)s::text[]) AS u (name)
JOIN pg_collation AS c ON c.oid = to_regcollation(u.name)
UNION ALL
SELECT 'role', rolname::text, '' FROM pg_roles WHERE rolname = ANY (%(role)s::text[])

-- name: locale
-- Encoding and collation of this database
SELECT pg_encoding_to_char(d.encoding), d.datcollate::text, d.datctype::text,
       coalesce(to_jsonb(d) ->> 'datlocprovider', 'c'),
       coalesce(to_jsonb(d) ->> 'datlocale', to_jsonb(d) ->> 'daticulocale')
FROM pg_database AS d WHERE d.datname = current_database()

-- name: expressions
-- Expressions of moved tables that call functions whose text the search_path explains, with which rows
-- they can be tried, and whether only this role and superusers decide what runs then
WITH RECURSIVE moved AS MATERIALIZED (
    SELECT c.oid, c.relkind FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
    JOIN unnest(%(schemas)s::name[]) AS u (name) ON u.name = n.nspname
    WHERE c.relkind IN ('r', 'p')
), trusted (oid) AS MATERIALIZED (
    SELECT oid FROM pg_roles WHERE rolsuper OR rolname = current_user
), valued (root, type) AS (
    -- Of columns: the types that values are made of.
    SELECT DISTINCT a.atttypid, a.atttypid FROM moved AS m
    JOIN pg_attribute AS a ON a.attrelid = m.oid AND a.attnum > 0 AND NOT a.attisdropped
    UNION
    SELECT v.root, inner_type.oid FROM valued AS v JOIN pg_type AS t ON t.oid = v.type
    CROSS JOIN LATERAL (
        SELECT t.typbasetype AS oid WHERE t.typtype = 'd'
        UNION ALL SELECT t.typelem WHERE t.typtype = 'b' AND t.typlen = -1 AND t.typelem <> 0
        UNION ALL SELECT g.rngsubtype FROM pg_range AS g WHERE t.oid IN (g.rngtypid, g.rngmultitypid)
        UNION ALL SELECT c.atttypid FROM pg_attribute AS c
                  WHERE t.typtype = 'c' AND c.attrelid = t.typrelid
                    AND c.attnum > 0 AND NOT c.attisdropped
    ) AS inner_type
)
SELECT DISTINCT m.oid::regclass::text, e.expression, p.oid::regprocedure::text, e.condition,
       (SELECT relowner FROM pg_class WHERE oid = m.oid) IN (SELECT oid FROM trusted)
       AND NOT EXISTS (
           SELECT FROM pg_depend AS x
           LEFT JOIN pg_operator AS xo ON x.refclassid = 'pg_operator'::regclass AND xo.oid = x.refobjid
           JOIN pg_proc AS f ON f.oid = CASE x.refclassid WHEN 'pg_proc'::regclass THEN x.refobjid
                                             ELSE xo.oprcode END
           WHERE (x.classid, x.objid, x.objsubid) = (e.classid, e.objid, e.objsubid)
             AND f.proowner NOT IN (SELECT oid FROM trusted))
FROM (SELECT 'pg_constraint'::regclass AS classid, k.oid AS objid, 0 AS objsubid,
             k.conrelid AS relation, pg_get_expr(k.conbin, k.conrelid) AS expression,
             'true' AS condition
      FROM pg_constraint AS k WHERE k.contype = 'c' AND k.conrelid <> 0
      UNION ALL
      SELECT a.classid, a.objid, a.objsubid, d.adrelid, pg_get_expr(d.adbin, d.adrelid), 'true'
      FROM pg_attrdef AS d
      JOIN pg_attribute AS g ON (g.attrelid, g.attnum) = (d.adrelid, d.adnum)
                            AND g.attgenerated <> ''
      CROSS JOIN LATERAL (VALUES ('pg_attrdef'::regclass, d.oid, 0),
                                 ('pg_class'::regclass, d.adrelid, d.adnum::integer)
                         ) AS a (classid, objid, objsubid)
      UNION ALL
      SELECT 'pg_class'::regclass, i.indexrelid, 0, i.indrelid,
             concat_ws(', ', pg_get_expr(i.indexprs, i.indrelid),
                       pg_get_expr(i.indpred, i.indrelid)), 'true'
      FROM pg_index AS i WHERE i.indexprs IS NOT NULL OR i.indpred IS NOT NULL
      UNION ALL
      -- A partition compares its rows with its bounds.
      SELECT 'pg_class'::regclass, k.partrelid, 0, l.relid,
             pg_get_expr(k.partexprs, k.partrelid), 'true'
      FROM pg_partitioned_table AS k CROSS JOIN LATERAL pg_partition_tree(k.partrelid) AS l
      WHERE k.partexprs IS NOT NULL AND l.isleaf
      UNION ALL
      -- A domain's checks belong to reading its text.
      SELECT 'pg_constraint'::regclass, k.oid, 0, a.attrelid,
             format('%%I::pg_catalog.text::%%s', a.attname, format_type(a.atttypid, a.atttypmod)),
             format('%%I IS NOT NULL', a.attname)
      FROM pg_constraint AS k JOIN valued AS v ON v.type = k.contypid
      JOIN pg_attribute AS a ON a.atttypid = v.root AND a.attnum > 0 AND NOT a.attisdropped
      WHERE k.contype = 'c' AND k.contypid <> 0
     ) AS e
JOIN moved AS m ON m.oid = e.relation AND m.relkind = 'r'
JOIN pg_depend AS d ON (d.classid, d.objid, d.objsubid) = (e.classid, e.objid, e.objsubid)
                   AND d.refclassid IN ('pg_proc'::regclass, 'pg_operator'::regclass)
LEFT JOIN pg_operator AS o ON d.refclassid = 'pg_operator'::regclass AND o.oid = d.refobjid
JOIN pg_proc AS p ON p.oid = coalesce(o.oprcode, d.refobjid)
JOIN pg_language AS l ON l.oid = p.prolang AND l.lanname NOT IN ('internal', 'c')
WHERE p.prosqlbody IS NULL
  AND NOT EXISTS (SELECT FROM unnest(p.proconfig) AS s (setting)
                  WHERE starts_with(s.setting, 'search_path='))
ORDER BY 1, 2, 3

-- name: evaluate
-- An expression of a table, for one of its rows
SELECT {expression} FROM ONLY {table} WHERE {condition} LIMIT 1

-- name: timeout
-- After how many seconds the server drops a slot that is not used; 0 is never, so is an older one
SELECT coalesce((SELECT setting::bigint * CASE unit WHEN 'min' THEN 60 ELSE 1 END
                 FROM pg_settings WHERE name = 'idle_replication_slot_timeout'), 0)

-- name: subscriber
-- What a server uses of what a subscription takes: workers of all kinds, those of logical
-- replication, origins
SELECT (SELECT count(*) FROM pg_stat_activity
        WHERE backend_type NOT IN (
            'client backend', 'autovacuum launcher', 'autovacuum worker', 'background writer',
            'checkpointer', 'startup', 'walreceiver', 'walsender', 'walwriter', 'walsummarizer',
            'archiver', 'logger', 'standalone backend', 'slotsync worker', 'io worker')),
       (SELECT count(*) FROM pg_stat_subscription WHERE pid IS NOT NULL),
       (SELECT count(*) FROM pg_replication_origin)

-- name: not_theirs
-- Whose objects this role may not make, give away and write to; a role that is missing is not judged
SELECT r.rolname::text FROM pg_roles AS r
WHERE r.rolname = ANY (%(owners)s::text[])
  AND NOT (pg_has_role(r.oid, 'USAGE')
           AND pg_has_role(r.oid, CASE WHEN current_setting('server_version_num')::integer < 160000
                                       THEN 'MEMBER' ELSE 'SET' END))
ORDER BY 1

-- name: subscriber_rights
-- What the login role may not do on the target and a streamed move needs
WITH own AS (SELECT rolsuper AS super FROM pg_roles WHERE rolname = current_user)
SELECT what FROM (
    SELECT 'CREATE on the database', has_database_privilege(current_database(), 'CREATE')
    UNION ALL SELECT 'pg_monitor', pg_has_role('pg_monitor', 'USAGE')
    UNION ALL SELECT 'the right to create subscriptions',
                     super OR EXISTS (SELECT FROM pg_roles WHERE rolname = 'pg_create_subscription'
                                      AND pg_has_role(oid, 'USAGE')) FROM own
    UNION ALL SELECT 'ownership of schema shardctl',
                     coalesce(bool_or(pg_has_role(nspowner, 'USAGE')), true)
              FROM pg_namespace WHERE nspname = 'shardctl'
) AS needed (what, there) WHERE NOT there

-- name: apply_settings
-- What the worker that applies the stream would begin with: settings of database and role, and those
-- of this session that shardctl leaves as they are
SELECT s.setting FROM pg_db_role_setting AS d CROSS JOIN unnest(d.setconfig) AS s (setting)
WHERE d.setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database()))
  AND d.setrole IN (0, (SELECT oid FROM pg_roles WHERE rolname = current_user))
  AND split_part(s.setting, '=', 1) = ANY (%(names)s)
UNION
SELECT name || '=' || setting FROM pg_settings WHERE name = ANY (%(own)s)
ORDER BY 1

-- name: monetary
-- The lc_monetary with which a role's sessions begin here
SELECT coalesce((SELECT substr(s.setting, strpos(s.setting, '=') + 1)
                 FROM pg_db_role_setting AS d CROSS JOIN unnest(d.setconfig) AS s (setting)
                 WHERE s.setting LIKE 'lc\_monetary=%%'
                   AND d.setdatabase IN (0, (SELECT oid FROM pg_database
                                             WHERE datname = current_database()))
                   AND d.setrole IN (0, (SELECT oid FROM pg_roles WHERE rolname = %(role)s))
                 ORDER BY d.setrole <> 0 DESC, d.setdatabase <> 0 DESC LIMIT 1),
                current_setting('lc_monetary'))

-- name: may_read_files
-- Whether this role may read the settings in the server's files
SELECT has_table_privilege('pg_file_settings', 'SELECT')
   AND has_function_privilege('pg_show_all_file_settings()', 'EXECUTE')

-- name: file_settings
-- What of these settings the server's files say
SELECT name || '=' || setting FROM pg_file_settings
WHERE applied AND name = ANY (%(names)s) ORDER BY 1

-- name: role_maker
-- Whether this role may make a role that streams from here, and let it connect
SELECT r.rolsuper OR r.rolcreaterole AND current_setting('server_version_num')::integer >= 160000,
       has_database_privilege('public', current_database(), 'CONNECT')
       OR has_database_privilege(current_database(), 'CONNECT WITH GRANT OPTION')
FROM pg_roles AS r WHERE r.rolname = current_user

-- name: try_subscription
-- Log in to a source as a subscription does; to be rolled back. Of a publication that is there, the
-- tables would be looked for here
CREATE SUBSCRIPTION {name} CONNECTION {conninfo} PUBLICATION {absent}
WITH (connect = true, create_slot = false, slot_name = NONE, enabled = false, copy_data = false)

-- name: may_replicate
-- Whether this role may make a slot by a replication connection
SELECT rolsuper OR rolreplication FROM pg_roles WHERE rolname = current_user

-- name: origin_rights
-- Functions by which a reverse begins where it should, and which this role may not execute
SELECT p.oid::regprocedure::text FROM pg_proc AS p
WHERE p.pronamespace = 'pg_catalog'::regnamespace
  AND p.proname IN ('pg_replication_origin_advance', 'pg_replication_origin_progress')
  AND NOT has_function_privilege(p.oid, 'EXECUTE')
ORDER BY 1
