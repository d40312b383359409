-- name: expressions
-- Expressions of moved tables that call functions whose text the search_path explains, with which rows
-- they can be tried, and whether only this role and superusers decide what runs then
WITH RECURSIVE {held}, moved AS MATERIALIZED (
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
    SELECT v.root, h.inside FROM valued AS v JOIN held AS h ON h.outside = v.type
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
