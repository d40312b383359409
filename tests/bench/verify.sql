-- What somebody who knows the catalog would ask one node by hand, for the facts that `verify`
-- judges: one row for each thing, for a program to compare.
SELECT 'schema', n.nspname, n.nspacl::text, p.prosrc, p.proacl::text,
       pg_sequence_last_value(c.oid::regclass), pg_sequence_last_value(r.oid::regclass),
       c.relacl::text, r.relacl::text
FROM pg_namespace n
LEFT JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = 'next_id_seq'
LEFT JOIN pg_class r ON r.relnamespace = n.oid AND r.relname = 'next_id_block'
LEFT JOIN pg_proc p ON p.pronamespace = n.oid AND p.proname = 'next_id'
WHERE n.nspname ~ '^shard[0-9]+$'
UNION ALL
SELECT 'column', n.nspname, c.relname, a.attname, format_type(a.atttypid, a.atttypmod),
       a.attnum, a.attnotnull::int, pg_get_expr(d.adbin, d.adrelid), c.relacl::text
FROM pg_namespace n
JOIN pg_class c ON c.relnamespace = n.oid AND c.relkind = 'r'
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE n.nspname ~ '^shard[0-9]+$'
UNION ALL
SELECT 'index', n.nspname, c.relname, i.indexrelid::regclass::text, pg_get_indexdef(i.indexrelid),
       0, i.indisvalid::int, NULL, NULL
FROM pg_namespace n
JOIN pg_class c ON c.relnamespace = n.oid
JOIN pg_index i ON i.indrelid = c.oid
WHERE n.nspname ~ '^shard[0-9]+$'
UNION ALL
SELECT 'constraint', n.nspname, o.conrelid::regclass::text, o.conname, pg_get_constraintdef(o.oid),
       0, o.convalidated::int, NULL, NULL
FROM pg_namespace n
JOIN pg_constraint o ON o.connamespace = n.oid
WHERE n.nspname ~ '^shard[0-9]+$'
UNION ALL
SELECT 'trigger', n.nspname, t.tgrelid::regclass::text, t.tgname, pg_get_triggerdef(t.oid),
       0, 0, t.tgenabled::text, NULL
FROM pg_namespace n
JOIN pg_class c ON c.relnamespace = n.oid
JOIN pg_trigger t ON t.tgrelid = c.oid AND NOT t.tgisinternal
WHERE n.nspname ~ '^shard[0-9]+$'
UNION ALL
SELECT 'id', n.nspname, c.relname,
       query_to_xml(format('SELECT min(id), max(id) FROM %I.%I', n.nspname, c.relname),
                    true, true, '')::text,
       NULL, 0, 0, NULL, NULL
FROM pg_namespace n
JOIN pg_class c ON c.relnamespace = n.oid AND c.relkind = 'r'
WHERE n.nspname ~ '^shard[0-9]+$'
UNION ALL
SELECT 'migration', shard::text, file, checksum, NULL, 0, 0, NULL, NULL FROM shardctl.migration
UNION ALL
SELECT 'map', shard::text, schema, node, NULL, 0, 0, NULL, NULL FROM shardctl.map;
