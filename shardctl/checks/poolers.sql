-- name: may_read_secrets
-- Whether this role may read the secrets by which roles log in
SELECT has_column_privilege('pg_catalog.pg_authid', 'rolname', 'SELECT')
       AND has_column_privilege('pg_catalog.pg_authid', 'rolpassword', 'SELECT')

-- name: secrets
-- Digests of the SCRAM secrets of these roles, none for secrets of another kind
SELECT rolname::text,
       CASE WHEN starts_with(rolpassword, 'SCRAM-SHA-256$')
            THEN encode(sha256(convert_to(rolpassword, 'UTF8')), 'hex') END
FROM pg_catalog.pg_authid WHERE rolname = ANY (%(roles)s::name[])
