-- name: schemas
-- Every schema that may be a shard's, with its generator and the roles whose grants on it are not right
WITH role AS (
    SELECT oid, rolname, rolsuper OR rolname = current_user AS needs_no_defaults
    FROM pg_roles WHERE rolname = ANY (%(roles)s)
), granted AS (
    -- The default privileges that later tables and sequences will get, per schema and role.
    SELECT d.defaclnamespace AS namespace, a.grantee,
           bool_or(d.defaclobjtype = 'r') AND bool_or(d.defaclobjtype = 'S') AS complete
    FROM pg_default_acl AS d
    CROSS JOIN LATERAL aclexplode(d.defaclacl) AS a
    WHERE d.defaclrole = quote_ident(current_user)::regrole
    GROUP BY d.defaclnamespace, a.grantee
)
SELECT n.nspname::text,
       c.oid IS NOT NULL,
       r.oid IS NOT NULL,
       p.prosrc || coalesce(E'\n' || array_to_string(p.proconfig, ','), '')
         || CASE WHEN p.prosecdef THEN E'\nSECURITY DEFINER' ELSE '' END,
       array(SELECT role.rolname::text FROM role
             LEFT JOIN granted ON granted.namespace = n.oid AND granted.grantee = role.oid
             WHERE NOT (coalesce(granted.complete, role.needs_no_defaults)
                        AND has_schema_privilege(role.oid, n.oid, 'USAGE')
                        AND coalesce(has_sequence_privilege(role.oid, c.oid, 'USAGE')
                                     AND has_sequence_privilege(role.oid, c.oid, 'SELECT')
                                     AND has_sequence_privilege(role.oid, r.oid, 'SELECT')
                                     AND has_function_privilege(role.oid, p.oid, 'EXECUTE'),
                                     false))
                   -- With these it could stop the shard's ids by setval().
                   OR EXISTS (SELECT FROM pg_class AS s CROSS JOIN LATERAL aclexplode(s.relacl) AS a
                              WHERE s.oid IN (c.oid, r.oid) AND a.grantee = role.oid
                                AND s.relowner <> role.oid
                                AND (a.privilege_type = 'UPDATE'
                                     OR s.oid = r.oid AND a.privilege_type = 'USAGE'))
             ORDER BY role.rolname),
       array(SELECT role.rolname::text FROM role
             WHERE NOT has_schema_privilege(role.oid, n.oid, 'USAGE')),
       EXISTS (SELECT FROM pg_sequence AS q
               WHERE q.seqrelid IN (c.oid, r.oid)
                 AND (q.seqtypid <> 'bigint'::regtype OR q.seqincrement <> 1 OR q.seqcache <> 1
                      OR q.seqcycle OR q.seqmin > 1 OR q.seqmax <> 9223372036854775807))
FROM pg_namespace AS n
LEFT JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relname = %(counter)s AND c.relkind = 'S'
LEFT JOIN pg_class AS r ON r.relnamespace = n.oid AND r.relname = %(register)s AND r.relkind = 'S'
LEFT JOIN pg_proc AS p ON p.pronamespace = n.oid AND p.proname = %(wrapper)s AND p.pronargs = 0
WHERE n.nspname NOT IN ('pg_catalog', 'pg_toast', 'information_schema', 'shardctl')
  AND n.nspname !~ '^pg_(toast_)?temp_'

-- name: functions
-- The functions in schema shardctl, by name and argument types
SELECT proname || '(' || array_to_string(array(
           SELECT format_type(type, NULL)
           FROM unnest(proargtypes) WITH ORDINALITY AS a (type, place) ORDER BY place), ', ') || ')',
       prosrc || coalesce(E'\n' || array_to_string(proconfig, ','), '')
         || CASE WHEN NOT prosecdef THEN ''
                 -- Another role may not own the sequences on which it works.
                 WHEN proowner = quote_ident(current_user)::regrole OR pg_roles.rolsuper
                 THEN E'\nSECURITY DEFINER' ELSE E'\nSECURITY DEFINER, owned by ' || rolname END || E'\n'
         || CASE provolatile WHEN 'i' THEN 'IMMUTABLE' WHEN 's' THEN 'STABLE' ELSE 'VOLATILE' END
         || CASE WHEN proisstrict THEN ' STRICT' ELSE '' END
         || CASE proparallel WHEN 's' THEN ' PARALLEL SAFE' WHEN 'r' THEN ' PARALLEL RESTRICTED'
                             ELSE ' PARALLEL UNSAFE' END
FROM pg_proc JOIN pg_roles ON pg_roles.oid = proowner
WHERE pronamespace = to_regnamespace('shardctl')

-- name: present
-- Those of some schemas that are there
SELECT nspname::text FROM pg_namespace WHERE nspname = ANY (%(schemas)s::name[])

-- name: ungranted
-- The roles that are missing, or lack a grant on the database or on schema shardctl
SELECT wanted.role::text
FROM unnest(%(roles)s::name[]) AS wanted (role)
LEFT JOIN pg_roles AS role ON role.rolname = wanted.role
WHERE role.oid IS NULL
   OR NOT (has_database_privilege(role.oid, current_database(), 'CONNECT')
           AND has_schema_privilege(role.oid, to_regnamespace('shardctl')::oid, 'USAGE')
           AND has_table_privilege(role.oid, to_regclass('shardctl.cluster')::oid, 'SELECT')
           AND has_table_privilege(role.oid, to_regclass('shardctl.map')::oid, 'SELECT')
           AND coalesce((SELECT bool_and(has_function_privilege(role.oid, p.oid, 'EXECUTE'))
                         FROM pg_proc AS p WHERE p.pronamespace = to_regnamespace('shardctl')
                           AND p.prorettype <> 'trigger'::regtype), -- which no client calls
                        true))
ORDER BY 1

-- name: role_settings
-- The settings with which these roles' sessions begin in this database, and whether these are
-- PostgreSQL's own; a row for every role that is there
SELECT DISTINCT ON (r.rolname, s.name) r.rolname::text, s.name, s.value,
       CASE p.vartype WHEN 'bool' THEN s.value::boolean = p.boot_val::boolean
                      ELSE lower(s.value) = lower(p.boot_val) END
FROM pg_roles AS r
LEFT JOIN LATERAL (
    SELECT split_part(one, '=', 1), substr(one, strpos(one, '=') + 1), d.setrole, d.setdatabase
    FROM pg_db_role_setting AS d CROSS JOIN unnest(d.setconfig) AS one
    WHERE d.setrole IN (0, r.oid)
      AND d.setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database()))
) AS s (name, value, role, database) ON true
LEFT JOIN pg_settings AS p ON lower(p.name) = lower(s.name)
WHERE r.rolname = ANY (%(roles)s)
ORDER BY r.rolname, s.name, s.role <> 0 DESC, s.database <> 0 DESC

-- name: intruders
-- By what in schema public a role could let another session run its code, and the statement against it:
-- our sessions find functions there when their arguments fit better than those of pg_catalog
WITH public AS (
    SELECT n.oid, n.nspacl, n.nspowner FROM pg_namespace AS n WHERE n.nspname = 'public'
), stranger AS (
    SELECT 0::oid AS oid, 'PUBLIC' AS name
    UNION ALL
    SELECT r.oid, quote_ident(r.rolname) FROM pg_roles AS r, pg_database AS d, public AS p
    WHERE d.datname = current_database() AND NOT r.rolsuper AND r.rolname <> current_user
      AND r.oid NOT IN (d.datdba, p.nspowner)
)
SELECT s.name || ' may create functions in schema public',
       'REVOKE CREATE ON SCHEMA public FROM ' || s.name
FROM public AS p CROSS JOIN LATERAL aclexplode(coalesce(p.nspacl, acldefault('n', p.nspowner))) AS a
JOIN stranger AS s ON s.oid = a.grantee
WHERE a.privilege_type = 'CREATE'
UNION
SELECT s.name || ' owns function ' || f.oid::regprocedure,
       'DROP ROUTINE ' || f.oid::regprocedure
FROM pg_proc AS f JOIN public AS p ON p.oid = f.pronamespace JOIN stranger AS s ON s.oid = f.proowner
UNION
SELECT s.name || ' owns operator ' || o.oid::regoperator,
       'DROP OPERATOR ' || o.oid::regoperator
FROM pg_operator AS o JOIN public AS p ON p.oid = o.oprnamespace JOIN stranger AS s ON s.oid = o.oprowner
ORDER BY 1

-- name: shadows
-- Tables that are named like a table of a shard, in the schemas behind it: those of the search_path that
-- applications get from the database or from their roles, and public
WITH behind AS (
    SELECT 'public' AS name
    UNION
    SELECT replace(btrim(btrim(part), '"'), '""', '"')
    FROM pg_db_role_setting
    CROSS JOIN LATERAL unnest(setconfig) AS setting
    CROSS JOIN LATERAL unnest(string_to_array(substr(setting, length('search_path=') + 1), ',')) AS part
    WHERE setting LIKE 'search\_path=%%'
      AND setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database()))
      AND (setrole = 0 OR setrole IN (SELECT oid FROM pg_roles WHERE rolname = ANY (%(roles)s)))
)
SELECT DISTINCT n.nspname::text, c.relname::text
FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace
JOIN behind AS b ON b.name = n.nspname
WHERE n.nspname <> ALL (%(shards)s) AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
  AND EXISTS (SELECT FROM pg_class AS s
              JOIN pg_namespace AS sn ON sn.oid = s.relnamespace
              WHERE s.relname = c.relname AND s.relkind IN ('r', 'p', 'v', 'm', 'f')
                AND sn.nspname = ANY (%(schemas)s))
ORDER BY 1, 2

-- name: unvalidated
-- Tables of these schemas with a CHECK of this name that is not validated; partitions have a parent's
SELECT n.nspname::text, c.relname::text
FROM pg_constraint AS k
JOIN pg_class AS c ON c.oid = k.conrelid
JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE k.conname = %(name)s AND k.contype = 'c' AND NOT k.convalidated AND k.coninhcount = 0
  AND n.nspname = ANY (%(schemas)s)
ORDER BY 1, 2

-- name: keyed
-- Tables whose rows belong to named keys: those of these schemas, and all their partitions and children
WITH RECURSIVE keyed (oid, home, tab, col, depth) AS (
    SELECT c.oid, n.nspname::text, k.tab, k.col, 0
    FROM unnest(%(tables)s::text[], %(columns)s::text[]) AS k (tab, col)
    JOIN pg_class AS c ON c.relname = k.tab AND c.relkind IN ('r', 'p', 'f')
    JOIN pg_namespace AS n ON n.oid = c.relnamespace AND n.nspname = ANY (%(schemas)s)
    UNION ALL
    SELECT i.inhrelid, k.home, k.tab, k.col, k.depth + 1
    FROM keyed AS k JOIN pg_inherits AS i ON i.inhparent = k.oid
)
SELECT DISTINCT ON (k.oid) k.home, n.nspname::text, c.relname::text, c.relkind::text,
       k.tab, k.col, a.attname IS NOT NULL,
       coalesce(a.atttypid IN ('int2'::regtype, 'int4'::regtype, 'int8'::regtype), false),
       coalesce((
           WITH RECURSIVE base (oid) AS (
               SELECT a.atttypid
               UNION ALL
               SELECT t.typbasetype FROM base AS b JOIN pg_type AS t ON t.oid = b.oid AND t.typtype = 'd'
           )
           SELECT r.rolsuper OR r.rolname = current_user
           FROM base AS b JOIN pg_type AS t ON t.oid = b.oid AND t.typtype <> 'd'
           JOIN pg_roles AS r ON r.oid = t.typowner), true)
FROM keyed AS k
JOIN pg_class AS c ON c.oid = k.oid
JOIN pg_namespace AS n ON n.oid = c.relnamespace
LEFT JOIN pg_attribute AS a ON a.attrelid = k.oid AND a.attname = k.col AND a.attnum > 0
                           AND NOT a.attisdropped
-- A table that a line names itself has that key, and no parent's.
ORDER BY k.oid, k.depth, k.tab

-- name: held
-- Part of others, after WITH RECURSIVE: types, and what their values are made of
held (outside, inside) AS MATERIALIZED (
    SELECT oid, typelem FROM pg_type WHERE typelem <> 0 AND typlen = -1
    UNION ALL SELECT oid, typbasetype FROM pg_type WHERE typtype = 'd'
    UNION ALL SELECT unnest(ARRAY[rngtypid, rngmultitypid]), rngsubtype FROM pg_range
    UNION ALL SELECT c.reltype, a.atttypid
              FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid
              WHERE a.attnum > 0 AND NOT a.attisdropped AND c.reltype <> 0
)

-- name: tables_only
-- Read no view that takes a table's place meanwhile: it would run its owner's code, with our rights
SELECT set_config(name, 'view', false) FROM pg_settings WHERE name = 'restrict_nonsystem_relation_kind'

-- name: part
-- Part of others: the rows in some of a table's blocks
WHERE t.ctid >= {from_block}::tid AND t.ctid < {to_block}::tid

-- name: repack_leftovers
-- What killed runs of pg_repack left, by table; what another session is at is not among them
WITH found AS (
    SELECT substring(relname FROM '\d+$')::bigint AS tbl, 'repack.' || relname AS name
    FROM pg_class
    WHERE relnamespace = to_regnamespace('repack') AND relkind = 'r' AND relname ~ '^(log|table)_\d{1,10}$'
    UNION ALL
    SELECT substring(typname FROM '\d+$')::bigint, 'repack.' || typname
    FROM pg_type WHERE typnamespace = to_regnamespace('repack') AND typtype = 'c' AND typname ~ '^pk_\d{1,10}$'
    UNION ALL
    SELECT t.tgrelid::bigint, 'a trigger'
    FROM pg_trigger AS t JOIN pg_proc AS p ON p.oid = t.tgfoid
    WHERE t.tgname = 'repack_trigger' AND p.pronamespace = to_regnamespace('repack')
)
SELECT f.tbl, n.nspname::text, c.relname::text, array_agg(f.name ORDER BY f.name)
FROM found AS f
LEFT JOIN pg_class AS c ON c.oid::bigint = f.tbl
LEFT JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE NOT EXISTS (SELECT FROM pg_locks AS l
                  WHERE l.locktype = 'advisory' AND l.classid::bigint = %(class)s AND l.objsubid = 2
                    AND l.pid IS DISTINCT FROM pg_backend_pid()
                    AND l.objid::bigint = (f.tbl + 2147483648) %% 4294967296
                    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()))
GROUP BY f.tbl, n.nspname, c.relname
ORDER BY f.tbl
