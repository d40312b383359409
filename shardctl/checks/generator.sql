-- name: lacking
-- What each role lacks of the grants that init makes in the database (the schema is null) and in these
-- schemas, and what it has that init takes away
SELECT NULL, wanted.role, 'this server: the role does not exist', 'every right', false
FROM unnest(%(roles)s::name[]) AS wanted (role)
WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = wanted.role)
UNION ALL
SELECT NULL, role.rolname::text, wanted.object, wanted.privilege, false
FROM pg_roles AS role
CROSS JOIN LATERAL (
    SELECT 'database' AS object, 'CONNECT' AS privilege,
           has_database_privilege(role.oid, current_database(), 'CONNECT') AS granted
    UNION ALL
    SELECT 'schema shardctl', 'USAGE',
           has_schema_privilege(role.oid, to_regnamespace('shardctl')::oid, 'USAGE')
    UNION ALL
    SELECT name, 'SELECT', has_table_privilege(role.oid, to_regclass(name)::oid, 'SELECT')
    FROM unnest(ARRAY['shardctl.cluster', 'shardctl.map']) AS name
    UNION ALL
    SELECT 'shardctl.' || p.proname, 'EXECUTE', has_function_privilege(role.oid, p.oid, 'EXECUTE')
    FROM pg_proc AS p WHERE p.pronamespace = to_regnamespace('shardctl')
) AS wanted
WHERE role.rolname = ANY (%(roles)s) AND NOT wanted.granted
UNION ALL
(
SELECT n.nspname::text, role.rolname::text, wanted.object, wanted.privilege, wanted.excess
FROM pg_namespace AS n
JOIN pg_roles AS role ON role.rolname = ANY (%(roles)s)
CROSS JOIN LATERAL (
    SELECT 1 AS place, 'schema' AS object, 'USAGE' AS privilege,
           has_schema_privilege(role.oid, n.oid, 'USAGE') AS granted, false AS excess
    UNION ALL
    SELECT 2, c.relname::text, p.privilege, has_sequence_privilege(role.oid, c.oid, p.privilege), false
    FROM pg_class AS c
    CROSS JOIN unnest(ARRAY['USAGE', 'SELECT']) AS p (privilege)
    WHERE c.relnamespace = n.oid AND c.relkind = 'S' AND c.relname = ANY (%(sequences)s)
      AND (c.relname <> %(register)s OR p.privilege = 'SELECT')
    UNION ALL
    SELECT 2, c.relname::text, a.privilege_type, false, true
    FROM pg_class AS c CROSS JOIN LATERAL aclexplode(c.relacl) AS a
    WHERE c.relnamespace = n.oid AND c.relkind = 'S' AND c.relname = ANY (%(sequences)s)
      AND a.grantee = role.oid AND c.relowner <> role.oid
      AND (a.privilege_type = 'UPDATE' OR c.relname = %(register)s AND a.privilege_type = 'USAGE')
    UNION ALL
    SELECT 3, f.proname::text, 'EXECUTE', has_function_privilege(role.oid, f.oid, 'EXECUTE'), false
    FROM pg_proc AS f
    WHERE f.pronamespace = n.oid AND f.proname = %(wrapper)s AND f.pronargs = 0
    UNION ALL
    SELECT 4, 'default privileges', kind.name,
           EXISTS (SELECT FROM pg_default_acl AS d CROSS JOIN LATERAL aclexplode(d.defaclacl) AS a
                   WHERE d.defaclrole = quote_ident(current_user)::regrole AND d.defaclnamespace = n.oid
                     AND d.defaclobjtype = kind.type AND a.grantee = role.oid), false
    FROM (VALUES ('ON TABLES', 'r'::"char"), ('ON SEQUENCES', 'S')) AS kind (name, type)
    WHERE NOT (role.rolsuper OR role.rolname = current_user)
) AS wanted
WHERE n.nspname = ANY (%(schemas)s) AND NOT wanted.granted
ORDER BY 1, 2, wanted.place, 3, 4
)

-- name: sequences
-- The counters and registers of these schemas, and whether each draws one value after the other
SELECT n.nspname::text, c.relname::text, c.oid,
       concat_ws(', ', CASE WHEN s.seqincrement <> 1 THEN 'INCREMENT ' || s.seqincrement END,
                       CASE WHEN s.seqcache <> 1 THEN 'CACHE ' || s.seqcache END,
                       CASE WHEN s.seqmin > 1 THEN 'MINVALUE ' || s.seqmin END,
                       CASE WHEN s.seqmax <> 9223372036854775807
                            THEN 'MAXVALUE ' || s.seqmax END,
                       CASE WHEN s.seqcycle THEN 'CYCLE' END,
                       CASE WHEN s.seqtypid <> 'bigint'::regtype
                            THEN 'AS ' || format_type(s.seqtypid, NULL) END,
                       CASE WHEN c.relpersistence = 'u' THEN 'UNLOGGED' END)
FROM pg_namespace AS n
JOIN pg_class AS c ON c.relnamespace = n.oid
JOIN pg_sequence AS s ON s.seqrelid = c.oid
WHERE n.nspname = ANY (%(schemas)s) AND c.relname = ANY (%(sequences)s)

-- name: registers
-- What registers and counters hold, each register before its counter: it never seems ahead
SELECT pg_sequence_last_value(register), pg_sequence_last_value(counter)
FROM unnest(%(registers)s::oid[], %(counters)s::oid[]) WITH ORDINALITY
         AS pair (register, counter, place)
ORDER BY place
