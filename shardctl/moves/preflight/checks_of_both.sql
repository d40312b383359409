-- check: structure
-- about: the target's database has what the shards refer to, in versions that fit, and sorts texts alike
-- at: both
-- stream:
--   extension_missing:
--     says: the structure of moved shards needs extensions that it lacks
--     hint: CREATE EXTENSION there
--   extension_differs:
--     says: the structure of moved shards needs newer extensions
--     hint: ALTER EXTENSION ... UPDATE there
--   extension_newer:
--     says: extensions are newer on node {target}
--   type_missing:
--     says: the structure of moved shards needs types that it lacks
--     hint: create them there as on the source; a migration that runs everywhere does
--   type_differs:
--     says: the structure of moved shards needs types as the source has them
--     hint: ALTER TYPE there, as on the source
--   function_missing:
--     says: the structure of moved shards needs functions that it lacks
--     hint: create them there as on the source; a migration that runs everywhere does
--   relation_missing:
--     says: the structure of moved shards needs tables and other relations that it lacks
--     hint: create them there with their rows, or drop what refers to them
--   collation_missing:
--     says: the structure of moved shards needs collations that it lacks
--     hint: CREATE COLLATION there, on a system that has the locale
--   collation_differs:
--     says: the structure of moved shards needs collations as the source has them
--     hint: make them there as on the source
--   role_missing:
--     says: the structure of moved shards needs roles that it lacks
--     hint: CREATE ROLE there, as on the source
--   tablespace_missing:
--     code: tablespaces
--     says: it lacks tablespaces of moved tables
--     hint: CREATE TABLESPACE there, or ALTER TABLE ... SET TABLESPACE pg_default on node {source}
--   lc_monetary_differs:
--     code: lc_monetary
--     says: it would read amounts of money by another lc_monetary than node {source} writes them
--     hint: ALTER ROLE {role} SET lc_monetary there, to that of the sessions of {replica} on node
--       {source}, or use `move-shards --method clone`
--   encoding_differs:
--     code: encoding
--     says: its database has another encoding
--     hint: make its database again with the same encoding, or choose another target
--   locale_differs:
--     code: locale
--     says: its database sorts texts in another order
--     hint: make its database again with the same locale, or choose another target
WITH RECURSIVE {held}, moved AS MATERIALIZED (
    SELECT n.oid, n.nspname, n.nspowner FROM pg_namespace AS n
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
), used (name, type) AS (
    -- The types that the values of columns are made of.
    SELECT m.nspname || '.' || c.relname, a.atttypid FROM moved AS m
    JOIN pg_class AS c ON c.relnamespace = m.oid AND c.relkind = 'r'
    JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    UNION
    SELECT u.name, h.inside FROM used AS u JOIN held AS h ON h.outside = u.type
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
UNION SELECT 'lc_monetary', name FROM used WHERE type = 'money'::regtype
UNION SELECT 'tablespace', s.spcname::text FROM pg_class AS c
      JOIN pg_tablespace AS s ON s.oid = c.reltablespace
      WHERE c.relnamespace IN (SELECT oid FROM moved)
UNION VALUES ('encoding', 'encoding'), ('locale', 'locale')
ORDER BY 1, 2
-- then
WITH named (kind, name) AS MATERIALIZED (
    SELECT n ->> 0, n ->> 1 FROM jsonb_array_elements(%(named)s::jsonb) AS n
), monetary (setting) AS (
    -- With which the sessions begin that write or read the stream's rows.
    SELECT coalesce((SELECT substr(s.setting, strpos(s.setting, '=') + 1)
                     FROM pg_db_role_setting AS d CROSS JOIN unnest(d.setconfig) AS s (setting)
                     WHERE s.setting LIKE 'lc\_monetary=%%'
                       AND d.setdatabase IN (0, (SELECT oid FROM pg_database
                                                 WHERE datname = current_database()))
                       AND d.setrole IN (0, (SELECT oid FROM pg_roles WHERE rolname = %(streams_as)s))
                     ORDER BY d.setrole <> 0 DESC, d.setdatabase <> 0 DESC LIMIT 1),
                    current_setting('lc_monetary'))
), found (kind, name, compared, shown) AS (
    -- Versions as texts that compare as their numbers do.
    SELECT 'extension', e.extname::text,
           (SELECT coalesce(string_agg(lpad(v[1], 20, '0'), '.'), '')
            FROM regexp_matches(e.extversion, '\d+', 'g') AS v),
           e.extversion FROM pg_extension AS e
    UNION ALL
    SELECT 'type', u.name, def.text, def.text
    FROM named AS u JOIN pg_type AS t ON t.oid = to_regtype(u.name)
    CROSS JOIN LATERAL (
        SELECT concat_ws(' ', t.typtype, CASE t.typtype WHEN 'd' THEN t.typbasetype::regtype::text END,
                       CASE WHEN t.typnotnull THEN 'not null' END,
                       (SELECT string_agg(quote_literal(e.enumlabel), ', ' ORDER BY e.enumsortorder)
                        FROM pg_enum AS e WHERE e.enumtypid = t.oid),
                       (SELECT string_agg(a.attname || ' ' || format_type(a.atttypid, a.atttypmod), ', '
                                          ORDER BY a.attnum)
                        FROM pg_attribute AS a
                        WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped),
                       (SELECT string_agg(pg_get_constraintdef(k.oid), ', ' ORDER BY k.conname)
                        FROM pg_constraint AS k WHERE k.contypid = t.oid AND k.contype = 'c'))
    ) AS def (text) WHERE u.kind = 'type'
    UNION ALL
    SELECT u.kind, u.name, '', '' FROM named AS u
    WHERE CASE u.kind WHEN 'function' THEN to_regprocedure(u.name) IS NOT NULL
                      WHEN 'relation' THEN to_regclass(u.name) IS NOT NULL
                      WHEN 'role' THEN u.name IN (SELECT rolname FROM pg_roles)
                      WHEN 'tablespace' THEN u.name IN (SELECT spcname FROM pg_tablespace) END
    UNION ALL
    SELECT 'collation', u.name, def.text, def.text
    FROM named AS u JOIN pg_collation AS c ON c.oid = to_regcollation(u.name)
    CROSS JOIN LATERAL (
        SELECT concat_ws(' ', c.collprovider, c.collcollate, c.collctype,
                         coalesce(to_jsonb(c) ->> 'colllocale', to_jsonb(c) ->> 'colliculocale'),
                         CASE WHEN NOT c.collisdeterministic THEN 'nondeterministic' END)
    ) AS def (text) WHERE u.kind = 'collation'
    UNION ALL SELECT 'lc_monetary', u.name, replace(lower(m.setting), '-', ''), m.setting
              FROM named AS u CROSS JOIN monetary AS m WHERE u.kind = 'lc_monetary'
    UNION ALL
    SELECT 'encoding', 'encoding', pg_encoding_to_char(encoding), pg_encoding_to_char(encoding)
    FROM pg_database WHERE datname = current_database()
    UNION ALL
    -- As all systems would write it: en_US.utf8 is en_US.UTF-8.
    SELECT 'locale', 'locale',
           replace(lower(concat_ws(' ', l.provider, d.datcollate, d.datctype, l.locale)), '-', ''),
           coalesce(l.locale, d.datcollate)
    FROM pg_database AS d
    CROSS JOIN LATERAL (VALUES (coalesce(to_jsonb(d) ->> 'datlocprovider', 'c'),
                                coalesce(to_jsonb(d) ->> 'datlocale', to_jsonb(d) ->> 'daticulocale'))
                       ) AS l (provider, locale)
    WHERE d.datname = current_database()
)
SELECT f.* FROM found AS f JOIN named AS n USING (kind, name) ORDER BY 1, 2
