-- name: schemas
-- Schemas of this database with the names of shards or of retired copies
SELECT n.nspname::text FROM pg_namespace AS n
WHERE n.nspname = ANY (%(schemas)s) OR n.nspname ~ '__retired_[0-9a-f]{8}$'
ORDER BY 1

-- name: tables
-- Tables of this database that neither an extension nor shardctl made, and that hold rows
SELECT n.nspname || '.' || c.relname FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'm') AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'shardctl')
  AND n.nspname !~ '^pg_(toast|temp)'
  AND NOT EXISTS (SELECT FROM pg_depend AS d WHERE d.classid = 'pg_class'::regclass
                  AND d.objid = c.oid AND d.deptype = 'e')
  AND pg_relation_size(c.oid) > 0
ORDER BY 1
