-- name: blocks
-- How many blocks these tables have; of one that is being altered, what was known: its size waits
SELECT n.nspname::text, c.relname::text,
       CASE WHEN c.oid = ANY (ARRAY(SELECT l.relation FROM pg_locks AS l
                                    WHERE l.mode = 'AccessExclusiveLock' AND l.relation IS NOT NULL))
            THEN c.relpages
            ELSE pg_relation_size(c.oid) / current_setting('block_size')::bigint END
FROM unnest(%(schemas)s::text[], %(names)s::text[]) AS t (schema, name)
JOIN pg_namespace AS n ON n.nspname = t.schema
JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relname = t.name

-- name: open
-- Begin to read a table; locked first, as the snapshot of a moment before a rewrite would see no rows
LOCK TABLE ONLY {table} IN ACCESS SHARE MODE;
DECLARE scan NO SCROLL CURSOR FOR
SELECT t.ctid, CASE WHEN {odd} THEN set_config('shardctl.odd', 'on', true) END FROM ONLY {table} AS t;
FETCH scan

-- name: step
-- Read some rows, then whether one was odd since the last step, then where the next row is
MOVE {rows} IN scan;
SELECT current_setting('shardctl.odd', true) = 'on', set_config('shardctl.odd', '', true);
FETCH scan

-- name: by_key
-- Part of others: the shard that a row's key belongs to
shardctl.shard_of({column})

-- name: by_id
-- Part of others: the shard that an id was made for; none where no shard has that number
CASE WHEN {column} BETWEEN 0 AND {highest} AND shardctl.id_shard({column}) < {count} THEN shardctl.id_shard({column}) END
