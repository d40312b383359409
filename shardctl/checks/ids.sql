-- name: moment
-- The node's clock, in Unix milliseconds
SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint

-- name: tables
-- Tables whose primary key is a bigint made by next_id(), with the locks that a plan takes
SELECT n.nspname::text, c.relname::text, a.attname::text,
       1 + (SELECT count(*) FROM pg_index AS every WHERE every.indrelid = c.oid)
FROM pg_namespace AS n
JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relkind = 'r'
JOIN pg_index AS i ON i.indrelid = c.oid AND i.indisprimary AND i.indnkeyatts = 1
JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = i.indkey[0]
                      AND a.atttypid = 'int8'::regtype
JOIN pg_attrdef AS d ON d.adrelid = c.oid AND d.adnum = a.attnum
WHERE n.nspname = ANY (%(schemas)s)
  -- The call itself, however the default's text is written.
  AND EXISTS (SELECT FROM pg_depend AS u JOIN pg_proc AS p ON p.oid = u.refobjid
              WHERE u.classid = 'pg_attrdef'::regclass AND u.objid = d.oid
                AND u.refclassid = 'pg_proc'::regclass AND p.proname = %(next_id)s)
ORDER BY c.oid

-- name: extremes
-- The oldest and the newest id of one table, each from an end of the primary key's index
SELECT {number}, min({id}), max({id}) FROM ONLY {table}

-- name: scan
-- The rows of one table that may be odd, all of them in one scan
SELECT {id}, {key} FROM ONLY {table} WHERE {conditions}

-- name: odd_id
-- An id that a shard's generator cannot have made by now
{id} < 0 OR {id} >= {limit} OR (({id} >> {sequence_bits}) & {max_shard}) <> {shard}

-- name: odd_key
-- A key of another shard; % takes the sign of the key
((({key}::bigint % {count}) + {count}) % {count}) <> {shard}

-- name: present
-- Which of these ids a table holds
SELECT {id} FROM ONLY {table} WHERE {id} = ANY ({wanted})
