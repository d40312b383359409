-- name: indexes
-- What drops the indexes that are left of some schemas, or their constraints
SELECT CASE WHEN k.oid IS NULL THEN pg_catalog.format('DROP INDEX %%I.%%I', n.nspname, i.relname)
       ELSE pg_catalog.format('ALTER TABLE %%I.%%I DROP CONSTRAINT %%I', n.nspname, c.relname, k.conname)
       END
FROM pg_catalog.pg_index AS x
JOIN pg_catalog.pg_class AS i ON i.oid = x.indexrelid AND NOT i.relispartition
JOIN pg_catalog.pg_class AS c ON c.oid = x.indrelid AND c.relkind IN ('r', 'p')
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_constraint AS k
       ON k.conindid = i.oid AND k.conrelid = c.oid AND k.contype IN ('p', 'u', 'x')
WHERE n.nspname = ANY (%(schemas)s::name[])

-- name: owners
-- Which roles own something in the moved schemas, or the schemas
WITH moved AS MATERIALIZED (
    SELECT n.oid, n.nspowner FROM pg_catalog.pg_namespace AS n
    JOIN unnest(%(schemas)s::name[]) AS u (name) ON u.name = n.nspname
)
SELECT DISTINCT pg_catalog.pg_get_userbyid(o.owner)::text
FROM (SELECT nspowner AS owner FROM moved
      UNION SELECT relowner FROM pg_catalog.pg_class WHERE relnamespace IN (SELECT oid FROM moved)
      UNION SELECT proowner FROM pg_catalog.pg_proc WHERE pronamespace IN (SELECT oid FROM moved)
      UNION SELECT typowner FROM pg_catalog.pg_type WHERE typnamespace IN (SELECT oid FROM moved)) AS o
ORDER BY 1

-- name: let_make
-- Let roles make things in a schema; those who make a structure give away what they have made only so
GRANT CREATE ON SCHEMA {schema} TO {roles}

-- name: objects
-- Part of other queries: what has rights in these schemas, how GRANT names it, what its rights are and
-- what PostgreSQL itself would give
SELECT 'relation ' || c.oid, pg_catalog.format(
           '%%s %%I.%%I', CASE c.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END, n.nspname, c.relname),
       c.relacl, pg_catalog.acldefault(CASE c.relkind WHEN 'S' THEN 's' ELSE 'r' END::"char", c.relowner)
FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = ANY (%(schemas)s::name[]) AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
UNION ALL
SELECT 'routine ' || p.oid, 'ROUTINE ' || p.oid::pg_catalog.regprocedure, p.proacl,
       pg_catalog.acldefault('f', p.proowner)
FROM pg_catalog.pg_proc AS p JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
WHERE n.nspname = ANY (%(schemas)s::name[])
UNION ALL
SELECT 'type ' || t.oid, pg_catalog.format('TYPE %%I.%%I', n.nspname, t.typname), t.typacl,
       pg_catalog.acldefault('T', t.typowner)
FROM pg_catalog.pg_type AS t JOIN pg_catalog.pg_namespace AS n ON n.oid = t.typnamespace
WHERE n.nspname = ANY (%(schemas)s::name[])

-- name: made
-- What has rights there
SELECT key FROM ({objects}) AS o (key, name, acl, own)

-- name: to_own_defaults
-- For each that has other rights, but for some: the statements that give it what PostgreSQL itself
-- would. No column has rights by default
SELECT pg_catalog.string_agg(pg_catalog.format(change, o.name, role), ';' ORDER BY change DESC)
FROM ({objects}) AS o (key, name, acl, own)
CROSS JOIN LATERAL (
    SELECT DISTINCT change, CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE pg_catalog.quote_ident(
               pg_catalog.pg_get_userbyid(a.grantee)) END
    FROM (VALUES ('REVOKE ALL ON %%s FROM %%s CASCADE', o.acl), ('GRANT ALL ON %%s TO %%s', o.own))
        AS v (change, acl), pg_catalog.aclexplode(v.acl) AS a
) AS c (change, role)
WHERE NOT (o.acl <@ o.own AND o.acl @> o.own) AND o.key <> ALL (%(but)s::text[])
GROUP BY o.key
