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

-- name: odd_id
-- An id that a shard's generator cannot have made by now
{id} >= {limit} OR (({id} >> {sequence_bits}) & {sign_and_shard}) <> {shard}

-- name: odd_key
-- A key of another shard
{belongs} <> {shard}

-- name: no_key
-- A key of no shard
{key} IS NOT NULL AND {belongs} IS NULL

-- name: judged
-- The odd rows of a part of a table by what is odd about them: whose shard they are of, and which
SELECT code, CASE code WHEN 'other_shard' THEN made ELSE belongs END,
       array_agg(CASE WHEN code IN ('other_key', 'no_key') THEN key ELSE id END)
FROM (
    SELECT id, key, made, belongs,
           -- One fault a row: a misplaced row's key is elsewhere with it.
           CASE WHEN id < 0 THEN 'negative' WHEN made <> {shard} THEN 'other_shard'
                WHEN id >= {limit} THEN 'future' WHEN belongs <> {shard} THEN 'other_key'
                WHEN key IS NOT NULL AND belongs IS NULL THEN 'no_key' END AS code
    FROM (
        SELECT {id} AS id, {key} AS key, ({id} >> {sequence_bits}) & {max_shard} AS made,
               {belongs} AS belongs
        FROM ONLY {table} AS t {part}
    ) AS each
) AS judged
WHERE code IS NOT NULL
GROUP BY 1, 2
ORDER BY 1, 2

-- name: present
-- Which of these ids a table holds
SELECT {id} FROM ONLY {table} WHERE {id} = ANY ({wanted})
