-- name: key
-- The columns by which a table's rows are told from each other; none: it has no such index
SELECT a.attname::text
FROM pg_index AS i
CROSS JOIN LATERAL unnest(i.indkey::smallint[]) WITH ORDINALITY AS k (number, place)
JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.number
WHERE i.indexrelid = (
    SELECT x.indexrelid FROM pg_index AS x
    WHERE x.indrelid = {table}::regclass
      AND (x.indexrelid = pg_get_replica_identity_index(x.indrelid) OR x.indisprimary)
    ORDER BY x.indisprimary LIMIT 1
) AND k.place <= i.indnkeyatts
ORDER BY k.place

-- name: groups
-- Sums of a table's rows in groups of keys
SELECT {key_hash} & {mask}, count(*), sum({row_hash})::text
FROM ONLY {schema}.{table} AS t
GROUP BY 1

-- name: rows
-- The keys of some of these groups, and a sum of each row
SELECT ({key})::text, {row_hash}
FROM ONLY {schema}.{table} AS t
WHERE {key_hash} & {mask} = ANY ({groups}::bigint[])

-- name: sequences
-- Read how far the sequences are, as the decision does
SELECT count(CASE WHEN c.relkind <> 'S' THEN 0
                  WHEN has_sequence_privilege(c.oid, 'USAGE, SELECT')
                  THEN pg_sequence_last_value(c.oid) END)
FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname IN ({schemas}) AND c.relkind = 'S'
