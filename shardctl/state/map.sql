SELECT c.map_version, c.node, pg_catalog.current_database(), c.cluster, c.shard_count,
       c.key_rule, c.schema_pattern, c.epoch_ms, c.tick_ms, c.time_bits, c.shard_bits,
       c.sequence_bits,
       (SELECT pg_catalog.array_agg(m.shard ORDER BY m.shard) FROM shardctl.map AS m),
       (SELECT pg_catalog.array_agg(m.node ORDER BY m.shard) FROM shardctl.map AS m)
FROM shardctl.cluster AS c
