-- What an operator would type for sizes, rows and load of all shards of one node.
SELECT n.nspname, sum(pg_total_relation_size(c.oid)), sum(s.n_live_tup),
       sum(s.n_tup_ins + s.n_tup_upd + s.n_tup_del), sum(s.seq_scan + coalesce(s.idx_scan, 0))
FROM pg_namespace n
JOIN pg_class c ON c.relnamespace = n.oid AND c.relkind = 'r'
JOIN pg_stat_user_tables s ON s.relid = c.oid
WHERE n.nspname ~ '^shard[0-9]+$'
GROUP BY n.nspname;
