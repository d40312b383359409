-- name: files
-- The file of each table of some schemas: a TRUNCATE gives it another
SELECT n.nspname::text, c.relname::text, pg_relation_filenode(c.oid)::bigint
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = ANY (%(schemas)s::name[]) AND c.relkind = 'r'
ORDER BY 1, 2

-- name: rename
-- Rename schemas, all at once; those that have their names already stay
DO $rename$
DECLARE
    one record;
BEGIN
    PERFORM pg_catalog.set_config('lock_timeout', '5s', true);
    FOR one IN
        SELECT u.name, u.wanted
        FROM unnest({names}::text[], {wanted}::text[]) AS u (name, wanted)
        JOIN pg_catalog.pg_namespace AS n ON n.nspname = u.name
        WHERE u.name <> u.wanted
    LOOP
        EXECUTE pg_catalog.format('ALTER SCHEMA %I RENAME TO %I', one.name, one.wanted);
    END LOOP;
END
$rename$

-- name: note_reversed
-- Which move this one reverses
UPDATE shardctl.move SET reverses = %(reverses)s, revision = revision + 1
WHERE id = %(move)s AND reverses IS NULL
