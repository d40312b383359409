


SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;


INSERT INTO shardctl.cluster (only_row, format, cluster, node, identity, shard_count, schema_pattern, epoch_ms, tick_ms, time_bits, shard_bits, sequence_bits, generator, map_version, made_at) VALUES (true, 2, 'lab', 'c', 'bf147921-cb58-4723-b50a-5b424864f7d1', 4, 'shard{id}', 1314220021721, 1, 41, 13, 10, 'strict', 2, '2026-11-22 20:00:30.139495+00');

INSERT INTO shardctl.map (shard, schema, node) VALUES (0, 'shard0', 'a');
INSERT INTO shardctl.map (shard, schema, node) VALUES (1, 'shard1', 'a');
INSERT INTO shardctl.map (shard, schema, node) VALUES (2, 'shard2', 'c');
INSERT INTO shardctl.map (shard, schema, node) VALUES (3, 'shard3', 'c');

INSERT INTO shardctl.move (id, revision, state, method, source, target, shards, schemas, retired, plan, who, started, changed, ended, drained_at, drained_to, proof, report) VALUES ('5f3a9c1e', 9, 'done', 'clone', 'a', 'c', '{2,3}', '{shard2,shard3}', '{shard2__retired_5f3a9c1e,shard3__retired_5f3a9c1e}', '{"said": {"cluster": "lab", "id.tick_ms": "1", "id.epoch_ms": "1314220021721", "nodes.a.ssh": "None", "nodes.c.ssh": "None", "id.generator": "strict", "id.time_bits": "41", "nodes.a.host": "127.0.0.1", "nodes.a.name": "a", "nodes.a.port": "46101", "nodes.c.host": "127.0.0.1", "nodes.c.name": "c", "nodes.c.port": "46103", "shards.count": "4", "database.name": "app", "database.user": "postgres", "id.shard_bits": "13", "shards.schema": "shard{id}", "poolers.p1.ssh": "None", "nodes.a.os_user": "None", "nodes.c.os_user": "None", "poolers.p1.host": "127.0.0.1", "poolers.p1.name": "p1", "poolers.p1.port": "46100", "database.options": "[(''connect_timeout'', ''5'')]", "id.sequence_bits": "10", "nodes.a.settings": "[(''fsync'', ''off''), (''full_page_writes'', ''off''), (''shared_buffers'', ''16MB'')]", "nodes.c.settings": "[(''fsync'', ''off''), (''full_page_writes'', ''off''), (''shared_buffers'', ''16MB'')]", "poolers.p1.config": "/srv/lab/p1/pgbouncer.ini", "database.app_roles": "(''app'',)", "poolers.p1.aliases": "(''shard'', ''node'')", "poolers.p1.os_user": "None", "nodes.a.pooler_host": "127.0.0.1", "nodes.c.pooler_host": "127.0.0.1", "nodes.a.bin_directory": "None", "nodes.c.bin_directory": "None", "poolers.p1.admin_user": "postgres", "nodes.a.data_directory": "/srv/lab/nodes/a", "nodes.c.data_directory": "/srv/lab/nodes/c", "poolers.p1.survive_reset": "False", "database.replication_user": "postgres", "poolers.p1.databases_file": "/srv/lab/p1/pgbouncer.databases.ini"}, "digest": "0794bfe4042a7c1f922e0e44afb0538e980c02584f8fe6d2382a7ba2e1368520", "options": {"max_rate": null, "retain_s": 86400.0, "read_only": false, "terminate": false, "clone_with": "basebackup", "max_pause_s": 10.0, "max_wal_bytes": 2190869299, "ignore_standby": false, "duplicate_shared": false}, "map_version": 1}', 'ann@ops1', '2026-11-22 20:00:52.146831+00', '2026-11-22 20:00:58.592425+00', '2026-11-22 20:00:58.592425+00', '2026-11-22 20:00:57.031098+00', '0/3001B78', 'compared', '{"rows": 2, "proof": "compared", "tables": 2, "pause_ms": 286.7087080012425, "timeline": [["open consoles", 113.5], ["stage files", 179.1], ["rehearse guards", 54.0], ["arm guards", 293.2], ["logins", 4.2], ["pause", 43.5], ["fence", 11.9], ["drain", 28.4], ["mark", 6.3], ["replay", 5.6], ["snapshot", 3.0], ["decide", 11.8], ["promote", 98.8], ["claim", 89.3], ["route", 21.6], ["serve", 7.8], ["settings", 42.4], ["slot", 37.6], ["map", 51.0], ["file", 170.9], ["disarm", 292.2]], "pooler_waits_ms": {"p1": 0.0}, "predicted_pause_ms": 71.0}');

INSERT INTO shardctl.move_step (move, step, state, started, took_ms, error) VALUES ('5f3a9c1e', 'reserve', 'done', '2026-11-22 20:00:52.249036+00', 161.10528300123406, NULL);
INSERT INTO shardctl.move_step (move, step, state, started, took_ms, error) VALUES ('5f3a9c1e', 'clone', 'done', '2026-11-22 20:00:52.680053+00', 1525.6058779996238, NULL);
INSERT INTO shardctl.move_step (move, step, state, started, took_ms, error) VALUES ('5f3a9c1e', 'follow', 'done', '2026-11-22 20:00:54.304362+00', 576.3744350006164, NULL);
INSERT INTO shardctl.move_step (move, step, state, started, took_ms, error) VALUES ('5f3a9c1e', 'cutover', 'done', '2026-11-22 20:00:54.951506+00', 2938.683281001431, NULL);
INSERT INTO shardctl.move_step (move, step, state, started, took_ms, error) VALUES ('5f3a9c1e', 'confirm', 'done', '2026-11-22 20:00:57.957192+00', 344.4571760010149, NULL);
INSERT INTO shardctl.move_step (move, step, state, started, took_ms, error) VALUES ('5f3a9c1e', 'retire', 'done', '2026-11-22 20:00:58.35375+00', 242.27668199819163, NULL);


