-- name: settings
-- Where the data directory is (null: this role may not know), and how much WAL the server keeps, in MB
SELECT (SELECT setting FROM pg_settings WHERE name = 'data_directory'),
       (SELECT setting::integer FROM pg_settings WHERE name = 'max_wal_size')

-- name: tables
-- How many tables each shard has that the map gives to this node
SELECT m.shard, count(c.oid)
FROM shardctl.map AS m
JOIN pg_namespace AS n ON n.nspname = m.schema
LEFT JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relkind = 'r'
WHERE m.node = %(node)s
GROUP BY m.shard
