-- name: tables
-- Tables of these schemas with their sizes, what of them is estimated to be bloat, and their order
WITH locked AS MATERIALIZED (
    -- pg_relation_size would wait for sessions that hold this lock or wait for it.
    SELECT relation AS oid FROM pg_locks
    WHERE locktype = 'relation' AND mode = 'AccessExclusiveLock'
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
), block AS (
    SELECT current_setting('block_size')::float8 AS size
), part AS (
    -- A table, or one of its B-tree indexes: pages now, and rows as they were counted last.
    SELECT t.oid AS tbl, c.oid, c.relname, n.nspname, c.relkind, c.reltuples, c.relpages,
           coalesce(substring(array_to_string(c.reloptions, ',') FROM 'fillfactor=(\d+)')::float8,
                    CASE c.relkind WHEN 'r' THEN 100 ELSE 90 END) / 100 AS fill
    FROM pg_class AS t JOIN pg_namespace AS n ON n.oid = t.relnamespace
    CROSS JOIN LATERAL (
        SELECT t.oid UNION ALL SELECT indexrelid FROM pg_index WHERE indrelid = t.oid
    ) AS u (oid)
    JOIN pg_class AS c ON c.oid = u.oid
    LEFT JOIN pg_am AS a ON a.oid = c.relam
    WHERE n.nspname = ANY (%(schemas)s) AND t.relkind = 'r' AND t.oid NOT IN (SELECT oid FROM locked)
      AND (c.relkind = 'r' OR a.amname = 'btree')
), width AS (
    -- What a row takes, by the widths that ANALYZE found; null where it has not seen a column.
    SELECT p.oid,
           CASE WHEN count(*) = count(s.avg_width) THEN
               sum((1 - s.null_frac) * s.avg_width) END AS data,
           coalesce(bool_or(s.null_frac > 0), false) AS nulls, count(*) AS columns
    FROM part AS p
    JOIN pg_attribute AS a ON a.attrelid = p.oid AND a.attnum > 0 AND NOT a.attisdropped
    LEFT JOIN pg_index AS i ON i.indexrelid = p.oid
    LEFT JOIN pg_attribute AS t ON t.attrelid = p.tbl AND t.attnum = i.indkey[a.attnum - 1] AND t.attnum > 0
    LEFT JOIN pg_class AS c ON c.oid = p.tbl
    LEFT JOIN pg_stats AS s ON s.schemaname = p.nspname AND NOT s.inherited
      AND s.tablename = CASE WHEN t.attnum IS NULL THEN p.relname ELSE c.relname END
      AND s.attname = coalesce(t.attname, a.attname)
    GROUP BY p.oid
), tuple AS (
    -- Header, bitmap of nulls, data, all aligned to 8 bytes, and the pointer to it.
    SELECT p.*, pg_relation_size(p.oid) / b.size AS pages, b.size,
           CASE p.relkind
               WHEN 'r' THEN ceil((23 + CASE WHEN w.nulls THEN ceil(w.columns / 8.0) ELSE 0 END) / 8) * 8
               ELSE 8 END + ceil(w.data / 8) * 8 + 4 AS bytes
    FROM part AS p CROSS JOIN block AS b LEFT JOIN width AS w ON w.oid = p.oid
), waste AS (
    -- Pages beyond those that as many rows would fill. Rows have grown with the pages since.
    SELECT tbl, relkind, pages * size AS part_bytes, CASE
        WHEN pages = 0 THEN 0
        WHEN reltuples = 0 AND relpages > 0 THEN greatest(0, pages - CASE relkind WHEN 'r' THEN 0 ELSE 1 END) * size
        WHEN reltuples < 0 OR relpages = 0 THEN NULL
        WHEN relkind = 'r' THEN greatest(0, pages - ceil(
            reltuples * pages / relpages / greatest(1, floor((size - 24) * fill / bytes)))) * size
        ELSE greatest(0, pages - 1 - ceil(
            1.01 * reltuples * pages / relpages / greatest(1, floor((size - 40) * fill / bytes)))) * size
        END AS bytes
    FROM tuple
), estimate AS (
    SELECT tbl, sum(coalesce(bytes, 0))::bigint AS bytes,
           bool_or(relkind = 'r' AND bytes IS NULL) AS unknown
    FROM waste GROUP BY tbl
), done AS (
    SELECT split_part(result, ':', 1) AS mark, max(at) AS at FROM shardctl.event
    WHERE command = %(command)s AND starts_with(result, %(mark)s)
    GROUP BY 1
)
SELECT n.nspname::text, c.relname::text, c.oid::bigint, c.relfilenode::bigint,
       CASE WHEN e.tbl IS NOT NULL THEN pg_total_relation_size(c.oid) ELSE 0 END,
       CASE WHEN NOT e.unknown THEN e.bytes END,
       coalesce(by.relname, pk.relname)::text,
       CASE WHEN e.tbl IS NOT NULL AND by.oid IS NULL AND key.indexrelid IS NOT NULL THEN
           repack.get_order_by(key.indexrelid, c.oid) END,
       extract(epoch FROM clock_timestamp() - d.at)::float8
FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace
LEFT JOIN estimate AS e ON e.tbl = c.oid
LEFT JOIN repack.primary_keys AS key ON key.indrelid = c.oid
LEFT JOIN pg_class AS pk ON pk.oid = key.indexrelid
LEFT JOIN pg_index AS i ON i.indrelid = c.oid AND i.indisclustered AND i.indisvalid
LEFT JOIN pg_class AS by ON by.oid = i.indexrelid
  AND by.relam = (SELECT oid FROM pg_am WHERE amname = 'btree')
LEFT JOIN done AS d ON d.mark = %(mark)s || c.relfilenode
WHERE n.nspname = ANY (%(schemas)s) AND c.relkind = 'r'
  AND c.relpersistence = 'p'  -- pg_repack takes no others

-- name: measure
-- In which file a table is, and how large it is with indexes and TOAST; nothing where it is gone
SELECT relfilenode::bigint, pg_total_relation_size(oid) FROM pg_class WHERE oid = %(table)s::bigint::oid
