-- check: rights
-- The login role may do on the source, and on the target of a stream, all that a move does
-- at: each
-- any:
--   rights:
--     says: '{user} lacks rights that a move needs'
--     hint: run there as a superuser GRANT ... TO {role} for each of them, or ALTER ROLE {role} REPLICATION,
--       which a target needs for --keep-reverse only
WITH own AS (
    SELECT rolsuper AS super, rolreplication AS replication FROM pg_roles
    WHERE rolname = current_user
), schema AS MATERIALIZED (
    SELECT n.oid, n.nspname, n.nspowner FROM pg_namespace AS n
    JOIN unnest(%(owned)s::name[]) AS u (name) ON u.name = n.nspname
    WHERE %(streams)s OR n.nspname <> 'shardctl'
), needed (what, there) AS (
    SELECT 'REPLICATION', super OR replication FROM own WHERE NOT %(at_target)s OR %(slots)s > 0
    UNION ALL SELECT 'pg_monitor', pg_has_role('pg_monitor', 'USAGE')
    UNION ALL SELECT 'pg_signal_backend', pg_has_role('pg_signal_backend', 'USAGE')
              WHERE %(terminate)s AND NOT %(at_target)s
    UNION ALL SELECT 'CREATE on the database',
                     has_database_privilege(current_database(), 'CREATE')
    UNION ALL SELECT 'TEMPORARY on the database',
                     has_database_privilege(current_database(), 'TEMPORARY')
              WHERE %(streams)s AND NOT %(at_target)s
    -- To promote, to accept connections, and to read the files of which the clone's are made; and
    -- those by which a reverse begins where it should.
    UNION ALL SELECT 'EXECUTE on ' || f.name, has_function_privilege(f.name, 'EXECUTE')
              FROM unnest(CASE WHEN NOT %(streams)s THEN ARRAY[
                  'pg_promote(boolean,integer)', 'pg_reload_conf()', 'pg_show_all_file_settings()',
                  'pg_hba_file_rules()', 'pg_ls_dir(text)', 'pg_ls_dir(text,boolean,boolean)',
                  'pg_read_binary_file(text)', 'pg_read_file(text,bigint,bigint,boolean)',
                  'pg_stat_file(text,boolean)']
              WHEN %(at_target)s AND %(reverses)s THEN ARRAY[
                  'pg_replication_origin_advance(text,pg_lsn)',
                  'pg_replication_origin_progress(text,boolean)'] END) AS f (name)
    UNION ALL SELECT 'SELECT on ' || v.name, has_table_privilege(v.name, 'SELECT')
              FROM unnest(ARRAY['pg_file_settings', 'pg_hba_file_rules']) AS v (name)
              WHERE NOT %(streams)s
    UNION ALL SELECT 'SELECT, INSERT and UPDATE on ' || t.name,
                     has_table_privilege(to_regclass(t.name), 'SELECT')
                     AND has_table_privilege(to_regclass(t.name), 'INSERT')
                     AND has_table_privilege(to_regclass(t.name), 'UPDATE')
              FROM unnest(ARRAY['shardctl.cluster', 'shardctl.map', 'shardctl.move',
                                'shardctl.move_step']) AS t (name)
              WHERE NOT %(at_target)s AND to_regclass(t.name) IS NOT NULL
    UNION ALL SELECT format('ownership of schema %%I (one of %%s)', min(nspname::text), count(*)),
                     count(*) = 0
              FROM schema WHERE NOT pg_has_role(nspowner, 'USAGE')
    UNION ALL SELECT format('SELECT on table %%s (one of %%s)', min(c.oid::regclass::text), count(*)),
                     count(*) = 0
              FROM pg_class AS c JOIN schema AS s ON s.oid = c.relnamespace
              WHERE c.relkind IN ('r', 'm') AND NOT has_table_privilege(c.oid, 'SELECT')
    UNION ALL SELECT 'CREATE on schema shardctl',
                     coalesce(has_schema_privilege(to_regnamespace('shardctl'), 'CREATE'), true)
              WHERE %(streams)s AND NOT %(at_target)s
    -- Beside the data, EXECUTE on the functions that read files is enough; elsewhere it is not.
    UNION ALL SELECT 'pg_read_server_files (outside the data directory: '
                     || string_agg(f.setting, ', ' ORDER BY f.name) || ')',
                     pg_has_role('pg_read_server_files', 'USAGE')
              FROM pg_settings AS f JOIN pg_settings AS d ON d.name = 'data_directory'
              WHERE f.name IN ('hba_file', 'ident_file')
                AND NOT starts_with(f.setting, d.setting || '/')
              HAVING count(*) > 0 AND NOT %(streams)s
    -- The loop that bounds the WAL ends the walsender before it drops the slot.
    UNION ALL SELECT 'the right to end sessions of ' || r.rolname, super OR (NOT r.rolsuper
                     AND (pg_has_role(r.oid, 'USAGE') OR pg_has_role('pg_signal_backend', 'USAGE')))
              FROM pg_roles AS r, own WHERE r.rolname = %(replication_user)s AND NOT %(at_target)s
    UNION ALL SELECT CASE WHEN current_setting('server_version_num')::integer < 160000
                          THEN 'SUPERUSER (before 16, for subscriptions)' ELSE 'pg_create_subscription' END,
                     super OR EXISTS (SELECT FROM pg_roles WHERE rolname = 'pg_create_subscription'
                                      AND pg_has_role(oid, 'USAGE'))
              FROM own WHERE %(at_target)s
)
-- As one name, so that none of them is only counted.
SELECT 'rights', string_agg(what, '; ') FROM needed WHERE NOT there HAVING count(*) > 0

-- check: contents
-- The shards have nothing that is lost, or that writes past the fence
-- at: source
-- again: cutover
-- any:
--   prepared_transactions:
--     says: it has prepared transactions
--     hint: 'run COMMIT PREPARED or ROLLBACK PREPARED: a clone would have them, too, and no slot is made
--       before they end'
--   unlogged:
--     says: unlogged tables or sequences would be empty on the target
--     hint: run ALTER TABLE (or SEQUENCE) ... SET LOGGED, or drop them
--   large_objects:
--     says: 'it has {names}, which belong to no shard: no fence protects them, and no stream carries them'
--     hint: store them as bytea in the shards' tables, then remove them with lo_unlink or vacuumlo
--   subscriptions:
--     says: 'it has subscriptions: {names}; they bypass the fence, and a clone would consume their changes'
--     hint: drop them, or disable those that do not write into moved shards
--   publications:
--     says: 'publications have tables of moved shards: {names}; point their subscribers to node {target}
--       after the move'
-- clone:
--   tablespaces:
--     says: it has tablespaces outside its data directory
--     hint: 'move their tables and indexes to pg_default, then drop them: a clone has no directory for them'
--   slots_away:
--     says: replication slots without a connected standby
--   slots_logical:
--     says: logical replication slots are not copied
SELECT 'prepared_transactions', quote_literal(gid) || ' in database ' || database FROM pg_prepared_xacts
UNION ALL
SELECT 'unlogged', n.nspname || '.' || c.relname
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = ANY (%(schemas)s::name[]) AND c.relpersistence = 'u' AND c.relkind IN ('r', 'S')
UNION ALL
-- Who can log in can make them.
SELECT 'large_objects', to_char(count(*), 'FM999,999,999,999') || ' large objects of '
                        || string_agg(DISTINCT pg_get_userbyid(lomowner)::text, ', ')
FROM pg_largeobject_metadata HAVING count(*) > 0
UNION ALL
SELECT 'subscriptions', s.subname || ' in database ' || d.datname
FROM pg_subscription AS s JOIN pg_database AS d ON d.oid = s.subdbid
WHERE s.subenabled
   OR EXISTS (SELECT FROM pg_subscription_rel AS r
              JOIN pg_class AS c ON c.oid = r.srrelid
              JOIN pg_namespace AS n ON n.oid = c.relnamespace
              WHERE r.srsubid = s.oid AND n.nspname = ANY (%(schemas)s::name[]))
UNION ALL
-- But for those of moves.
SELECT DISTINCT 'publications', p.pubname::text FROM pg_publication_tables AS p
WHERE p.schemaname = ANY (%(schemas)s::name[]) AND p.pubname !~ '^shardctl_[0-9a-f]{{8}}$'
UNION ALL
SELECT 'tablespaces', spcname::text FROM pg_tablespace
WHERE spcname NOT IN ('pg_default', 'pg_global')
UNION ALL
SELECT CASE slot_type WHEN 'logical' THEN 'slots_logical' ELSE 'slots_away' END, slot_name::text
FROM pg_replication_slots
WHERE slot_name <> %(slot)s AND (slot_type = 'logical' OR NOT active)
ORDER BY 1, 2

-- check: room of replication
-- The server decodes its WAL for a stream, and has free what feeds one copy more
-- at: each
-- any:
--   wal_level:
--     says: the WAL cannot be decoded
--     hint: run ALTER SYSTEM SET wal_level = logical there and restart the server; or use --method clone; or
--       give --keep-reverse 0 for a target
--   decoding_broken:
--     says: logical decoding of this version is known to run out of memory
--     hint: install its next minor release, and restart it; or use --method clone; or give --keep-reverse 0
--       for a target
--   wal_senders:
--     says: it has too few WAL senders free for a move
--     hint: run ALTER SYSTEM SET max_wal_senders to as much there, then restart it; or give --keep-reverse 0
--       for a target
--   replication_slots:
--     says: it has no replication slot free for a move
--     hint: run ALTER SYSTEM SET max_replication_slots to as much there, then restart it; or `shardctl moves
--       finish` for a move that need not be reversed; or give --keep-reverse 0 for a target
SELECT 'wal_level', 'wal_level = ' || current_setting('wal_level')
WHERE %(decodes)s AND current_setting('wal_level') <> 'logical'
UNION ALL
-- It needs ever more memory where DDL runs beside open transactions ("invalid memory alloc request size").
SELECT 'decoding_broken', current_setting('server_version')
WHERE %(decodes)s AND current_setting('server_version_num') IN ('150013', '160009', '170005')
UNION ALL
SELECT code, format('%%s = %%s, %%s in use, and %%s has to be free', name, setting, used, wanted)
FROM (SELECT 'wal_senders', 'max_wal_senders', %(senders)s::integer,
             (SELECT count(*) FROM pg_stat_get_wal_senders() AS w
              LEFT JOIN pg_stat_activity AS a ON a.pid = w.pid
              -- But for those that try the login at this moment.
              WHERE a.application_name IS DISTINCT FROM %(purpose)s)
      UNION ALL
      SELECT 'replication_slots', 'max_replication_slots', %(slots)s::integer,
             (SELECT count(*) FROM pg_replication_slots)) AS u (code, name, wanted, used)
JOIN pg_settings USING (name)
WHERE setting::bigint - used < wanted

-- check: room of a subscription
-- The target has workers and an origin free, which apply the stream's rows as they are
-- at: target
-- stream:
--   workers:
--     says: it has no free background worker
--     hint: run ALTER SYSTEM SET max_worker_processes to more there, then restart the server
--   appliers:
--     says: it has no free worker for a subscription
--     hint: run ALTER SYSTEM SET max_logical_replication_workers to more there, then restart the server
--   origins:
--     says: it has no free replication origin
--     hint: run ALTER SYSTEM SET of this parameter to more there, then restart the server
--   apply_settings:
--     says: settings would stop the worker of a subscription, or change the values that it reads
--     hint: RESET them for the database, the role and the server until the move is over; pg_db_role_setting
--       and pg_settings show where they are set
SELECT code, format('%%s = %%s, and %%s are in use', name, setting, used)
FROM (SELECT 'workers', 'max_worker_processes',
             (SELECT count(*) FROM pg_stat_activity WHERE backend_type NOT IN (
                  'client backend', 'autovacuum launcher', 'autovacuum worker', 'background writer',
                  'checkpointer', 'startup', 'walreceiver', 'walsender', 'walwriter', 'walsummarizer',
                  'archiver', 'logger', 'standalone backend', 'slotsync worker', 'io worker'))
      UNION ALL
      SELECT 'appliers', 'max_logical_replication_workers',
             (SELECT count(*) FROM pg_stat_subscription WHERE pid IS NOT NULL)
      UNION ALL
      SELECT 'origins', CASE WHEN current_setting('server_version_num')::integer < 180000
                             THEN 'max_replication_slots' ELSE 'max_active_replication_origins' END,
             (SELECT count(*) FROM pg_replication_origin)) AS u (code, name, used)
JOIN pg_settings USING (name)
WHERE setting::bigint - used < 1
UNION ALL
SELECT 'apply_settings', setting
FROM (SELECT s.setting FROM pg_db_role_setting AS d CROSS JOIN unnest(d.setconfig) AS s (setting)
      WHERE d.setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database()))
        AND d.setrole IN (0, (SELECT oid FROM pg_roles WHERE rolname = current_user))
      -- Sessions of shardctl's leave these two as they are.
      UNION
      SELECT name || '=' || setting FROM pg_settings WHERE name IN ('array_nulls', 'xmloption')) AS of_any
WHERE setting ~* '^(array_nulls=(off|false|no|0)|xmloption=document|lock_timeout=(?!0(ms)?$)|'
                 'session_replication_role=(?!origin$)|default_transaction_read_only=(on|true|yes|1))'
ORDER BY 1, 2

-- check: standbys
-- No standby could be promoted, nor is the target one that commits wait for
-- at: source
-- again: cutover
-- any:
--   synchronous_clone:
--     says: 'synchronous_standby_names has {names}, so commits would wait for the target'
--     hint: list only permanent standbys there, by their application_name or cluster_name
--   standbys_ignored:
--     says: 'standbys are ignored: {names}; promoted now, they know no fence'
-- clone:
--   standbys:
--     says: 'it has standbys: {names}; one that is promoted during the cutover ignores the fence and would
--       accept writes for shards of node {target}'
--     hint: disable failover (Patroni, repmgr, ...), then give --ignore-standby
SELECT 'synchronous_clone', word[1]
FROM regexp_matches(current_setting('synchronous_standby_names'), '"[^"]*"|[^\s,()"]+', 'g') AS word
WHERE lower(trim('"' FROM word[1])) IN ('*', %(slot)s, lower(%(target)s), 'walreceiver', 'pg_basebackup')
UNION ALL
-- A streamed move waits in its cutover until they have flushed the fence.
SELECT CASE WHEN %(ignores)s THEN 'standbys_ignored' ELSE 'standbys' END,
       format('%%s (%%s)', r.application_name, coalesce(host(r.client_addr), 'a socket'))
FROM pg_stat_replication AS r
LEFT JOIN pg_replication_slots AS s ON s.active_pid = r.pid
WHERE s.slot_type IS DISTINCT FROM 'logical' AND r.state IN ('catchup', 'streaming')
  -- Clones of moves are promoted by these only.
  AND r.application_name NOT IN ('pg_basebackup', 'pg_receivewal', %(purpose)s)
  AND r.application_name !~ '^shardctl_[0-9a-f]{{8}}$'
ORDER BY 1, 2

-- check: replica identities
-- A stream can name each row that clients update or delete
-- at: source
-- again: copy
-- stream:
--   no_replica_identity:
--     says: it has tables without a replica identity, so clients could not update or delete their rows
--       during the move
--     hint: give each a primary key that is not deferrable, or REPLICA IDENTITY FULL, as --identity
--       full does until the move is over; or use `move-shards --method clone`
--   generated_identity:
--     says: it has tables whose replica identity has a generated column, which is not replicated
--     hint: run ALTER TABLE ... REPLICA IDENTITY USING INDEX with another unique index, or use --method
--       clone
--   generated_identity_full:
--     says: it has tables with REPLICA IDENTITY FULL (or --identity full) and generated columns, which are
--       not replicated
--     hint: give each a primary key and REPLICA IDENTITY DEFAULT, or use `move-shards --method clone`
--   identity_without_equality:
--     says: it has tables with REPLICA IDENTITY FULL (or --identity full) and columns whose types cannot be
--       compared
--     hint: give each a primary key and REPLICA IDENTITY DEFAULT, or use `move-shards --method clone`
--   identity_full:
--     says: 'tables with REPLICA IDENTITY FULL and no index: {names}; for each row that clients update or
--       delete, node {target} reads the table up to that row'
--   identity_full_index:
--     says: 'tables with REPLICA IDENTITY FULL and an index: {names}; for each row that clients update or
--       delete, node {target} looks it up there, or before PostgreSQL 16 reads the table up to that row'
--   identity_lent:
--     says: 'tables that have REPLICA IDENTITY FULL until the move and its reverse are over (--identity
--       full): {names}; to set it, and to put it back, each is locked for a moment'
WITH moved AS MATERIALIZED (
    SELECT c.oid, n.nspname || '.' || c.relname AS name, c.reltuples, i.index,
           c.relreplident = 'f' OR l.lent AS is_full, l.lent
    FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
    JOIN unnest(%(schemas)s::name[]) AS u (name) ON u.name = n.nspname
    CROSS JOIN pg_get_replica_identity_index(c.oid) AS i (index)
    CROSS JOIN LATERAL (VALUES (%(lends)s AND c.relreplident <> 'f' AND i.index IS NULL)) AS l (lent)
    WHERE c.relkind = 'r'
), judged AS (
    SELECT m.*,
           CASE WHEN m.is_full AND EXISTS (SELECT FROM pg_attribute AS a
                                           WHERE a.attrelid = m.oid AND a.attgenerated <> ''
                                             AND NOT a.attisdropped) THEN 'generated_identity_full'
                -- Of PostgreSQL's own types, those that apply cannot compare.
                WHEN m.is_full AND EXISTS (
                    SELECT FROM pg_attribute AS a WHERE a.attrelid = m.oid AND a.atttypid = ANY (
                        ARRAY['json', 'jsonpath', 'xml', 'point', 'line', 'lseg', 'box', 'path', 'polygon',
                              'circle']::regtype[]))
                THEN 'identity_without_equality'
                WHEN m.is_full AND EXISTS (
                    -- By what PostgreSQL looks for a row: a plain column comes first.
                    SELECT FROM pg_index AS x JOIN pg_class AS c ON c.oid = x.indexrelid
                    JOIN pg_am AS a ON a.oid = c.relam AND a.amname = 'btree'
                    WHERE x.indrelid = m.oid AND x.indisvalid AND x.indpred IS NULL AND x.indkey[0] > 0
                ) THEN 'identity_full_index'
                WHEN m.is_full THEN 'identity_full'
                WHEN m.index IS NULL THEN 'no_replica_identity'
                WHEN EXISTS (SELECT FROM pg_index AS i
                             JOIN pg_attribute AS a ON a.attrelid = i.indrelid
                                                   AND a.attnum = ANY (i.indkey)
                             WHERE i.indexrelid = m.index AND a.attgenerated <> '')
                THEN 'generated_identity' END AS verdict
    FROM moved AS m
)
SELECT verdict, name || CASE WHEN verdict LIKE 'identity_full%%'
    THEN format(' (%%s rows, %%s)', greatest(reltuples, pg_stat_get_live_tuples(oid)),
                pg_size_pretty(pg_relation_size(oid))) ELSE '' END
FROM judged WHERE verdict IS NOT NULL
UNION ALL
SELECT 'identity_lent', name FROM judged WHERE lent
ORDER BY 1, 2

-- check: publications
-- No publication takes in what the move makes
-- at: each
-- again: copy
-- stream:
--   wide_publications:
--     says: 'it has publications FOR ALL TABLES or IN SCHEMA: {names}; their subscribers would get what
--       the move writes there'
--     hint: 'publish a list of tables instead: CREATE PUBLICATION ... FOR TABLE ...'
SELECT 'wide_publications', pubname::text FROM pg_publication WHERE puballtables
UNION
SELECT 'wide_publications', p.pubname::text FROM pg_publication AS p
JOIN pg_publication_namespace AS s ON s.pnpubid = p.oid
JOIN pg_namespace AS n ON n.oid = s.pnnspid
WHERE n.nspname = 'shardctl' OR n.nspname = ANY (%(schemas)s::name[])
ORDER BY 2

-- check: unused slots
-- The source keeps the slot while no stream follows
-- at: source
-- stream:
--   slot_timeout:
--     says: 'node {source} drops a slot that is unused for {names} (idle_replication_slot_timeout), as one
--       is during the copy: set it to 0 until the move is over, and on node {target} until it need not be
--       reversed'
SELECT 'slot_timeout', setting || coalesce(' ' || unit, '') FROM pg_settings
WHERE name = 'idle_replication_slot_timeout' AND setting <> '0'

-- check: kinds of objects
-- No object of the shards would be lost, run twice, or mean something else on the target
-- at: source
-- again: copy
-- stream:
--   foreign_tables:
--     says: it has foreign tables in moved shards, whose rows are elsewhere
--     hint: drop them, or use `move-shards --method clone`
--   materialized_views:
--     says: it has populated materialized views in moved shards, which would arrive empty
--     hint: DROP them, or REFRESH MATERIALIZED VIEW ... WITH NO DATA, until the move is over, then REFRESH
--       them on the target; or use `move-shards --method clone`
--   forced_row_security:
--     says: it has tables with FORCE ROW LEVEL SECURITY, which hides rows from the copy
--     hint: ALTER TABLE ... NO FORCE ROW LEVEL SECURITY until the move is over, or use `move-shards --method clone`
--   always_triggers:
--     says: it has triggers that also fire for replicated rows (ENABLE ALWAYS or REPLICA), which would run
--       a second time on the target
--     hint: ALTER TABLE ... ENABLE TRIGGER (without ALWAYS), or use `move-shards --method clone`
--   extensions_inside:
--     says: it has extensions in moved schemas, which a streamed move does not copy
--     hint: ALTER EXTENSION ... SET SCHEMA public, or use `move-shards --method clone`
--   oid_columns:
--     says: it has columns that hold OIDs of objects (regclass and its kind), which mean other objects on
--       another server
--     hint: keep names instead (ALTER TABLE ... ALTER COLUMN ... TYPE text), or use `move-shards --method clone`
-- clone:
--   oid_columns:
--     says: 'columns hold OIDs of objects (regclass and the like): {names}; the clone keeps all OIDs, so
--       they stay valid on node {target}, except those of objects in shards that stay: prune drops their
--       copies there'
WITH RECURSIVE {held}, moved AS MATERIALIZED (
    SELECT n.oid, n.nspname FROM pg_namespace AS n
    JOIN unnest(%(schemas)s::name[]) AS u (name) ON u.name = n.nspname
), relation AS MATERIALIZED (
    SELECT c.*, m.nspname || '.' || c.relname AS name
    FROM pg_class AS c JOIN moved AS m ON m.oid = c.relnamespace
), used (name, type) AS (
    -- The types that values of columns are made of.
    SELECT r.name || '.' || a.attname, a.atttypid FROM relation AS r
    JOIN pg_attribute AS a ON a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped
    WHERE r.relkind IN ('r', 'm')
    UNION
    SELECT u.name, h.inside FROM used AS u JOIN held AS h ON h.outside = u.type
)
SELECT 'oid_columns', u.name FROM used AS u JOIN pg_type AS t ON t.oid = u.type
WHERE t.typnamespace = 'pg_catalog'::regnamespace AND t.typtype = 'b' AND t.typname LIKE 'reg%%'
UNION SELECT 'foreign_tables', name FROM relation WHERE relkind = 'f'
UNION SELECT 'materialized_views', name FROM relation WHERE relkind = 'm' AND relispopulated
UNION SELECT 'forced_row_security', name FROM relation WHERE relforcerowsecurity
UNION SELECT 'always_triggers', t.tgname || ' on ' || r.name
      FROM pg_trigger AS t JOIN relation AS r ON r.oid = t.tgrelid
      WHERE NOT t.tgisinternal AND t.tgenabled IN ('A', 'R')
        AND t.tgname NOT IN ('shardctl_read_only', 'shardctl_read_only_row')
UNION SELECT 'extensions_inside', e.extname || ' in ' || m.nspname
      FROM pg_extension AS e JOIN moved AS m ON m.oid = e.extnamespace
ORDER BY 1, 2

-- check: role settings
-- Sessions of applications begin on both nodes with the settings by which statements do the same
-- at: both
-- stream:
--   role_setting_differs:
--     code: role_settings
--     says: sessions of applications would begin with other settings
--     hint: '{alike}'
SELECT 'role_setting', r.rolname || ': ' || d.name
FROM pg_roles AS r CROSS JOIN unnest(%(decisive)s::text[]) AS d (name)
WHERE r.rolname = ANY (%(roles)s::name[])
-- then
WITH own (role, name, value, usual) AS ({role_settings})
SELECT 'role_setting', n ->> 1, coalesce('=' || s.value, ''), coalesce(s.value, 'not set')
FROM jsonb_array_elements(%(named)s::jsonb) AS n
-- What a node lacks altogether, `verify` reports.
JOIN (SELECT DISTINCT role FROM own) AS r ON starts_with(n ->> 1, r.role || ': ')
LEFT JOIN own AS s ON s.role || ': ' || s.name = n ->> 1 AND s.usual IS NOT TRUE
ORDER BY 2

-- check: structure
-- The target's database has what the shards refer to, in versions that fit, and sorts texts alike
-- at: both
-- stream:
--   extension_missing:
--     says: the structure of moved shards needs extensions that it lacks
--     hint: CREATE EXTENSION there
--   extension_differs:
--     says: the structure of moved shards needs newer extensions
--     hint: ALTER EXTENSION ... UPDATE there
--   extension_newer:
--     says: extensions are newer on node {target}
--   type_missing:
--     says: the structure of moved shards needs types that it lacks
--     hint: create them there as on the source; a migration that runs everywhere does
--   type_differs:
--     says: the structure of moved shards needs types as the source has them
--     hint: ALTER TYPE there, as on the source
--   function_missing:
--     says: the structure of moved shards needs functions that it lacks
--     hint: create them there as on the source; a migration that runs everywhere does
--   relation_missing:
--     says: the structure of moved shards needs tables and other relations that it lacks
--     hint: create them there with their rows, or drop what refers to them
--   collation_missing:
--     says: the structure of moved shards needs collations that it lacks
--     hint: CREATE COLLATION there, on a system that has the locale
--   collation_differs:
--     says: the structure of moved shards needs collations as the source has them
--     hint: make them there as on the source
--   role_missing:
--     says: the structure of moved shards needs roles that it lacks
--     hint: CREATE ROLE there, as on the source
--   tablespace_missing:
--     code: tablespaces
--     says: it lacks tablespaces of moved tables
--     hint: CREATE TABLESPACE there, or ALTER TABLE ... SET TABLESPACE pg_default on node {source}
--   lc_monetary_differs:
--     code: lc_monetary
--     says: it would read amounts of money by another lc_monetary than node {source} writes them
--     hint: set lc_monetary alike on both nodes, or use `move-shards --method clone`
--   encoding_differs:
--     code: encoding
--     says: its database has another encoding
--     hint: make its database again with the same encoding, or choose another target
--   locale_differs:
--     code: locale
--     says: its database sorts texts in another order
--     hint: make its database again with the same locale, or choose another target
WITH RECURSIVE {held}, moved AS MATERIALIZED (
    SELECT n.oid, n.nspname, n.nspowner FROM pg_namespace AS n
    JOIN unnest(%(schemas)s::name[]) AS u (name) ON u.name = n.nspname
), inside AS MATERIALIZED (
    SELECT 'pg_class'::regclass AS classid, oid AS objid FROM pg_class
    WHERE relnamespace IN (SELECT oid FROM moved)
    UNION ALL SELECT 'pg_type'::regclass, oid FROM pg_type
              WHERE typnamespace IN (SELECT oid FROM moved)
    UNION ALL SELECT 'pg_proc'::regclass, oid FROM pg_proc
              WHERE pronamespace IN (SELECT oid FROM moved)
    UNION ALL SELECT 'pg_constraint'::regclass, oid FROM pg_constraint
              WHERE connamespace IN (SELECT oid FROM moved)
    UNION ALL SELECT 'pg_namespace'::regclass, oid FROM moved
    UNION ALL SELECT part.classid, part.oid
              FROM (SELECT 'pg_attrdef'::regclass, oid, adrelid FROM pg_attrdef
                    UNION ALL SELECT 'pg_rewrite'::regclass, oid, ev_class FROM pg_rewrite
                    UNION ALL SELECT 'pg_trigger'::regclass, oid, tgrelid FROM pg_trigger
                    UNION ALL SELECT 'pg_policy'::regclass, oid, polrelid FROM pg_policy
                   ) AS part (classid, oid, relation)
              JOIN pg_class AS c ON c.oid = part.relation
              WHERE c.relnamespace IN (SELECT oid FROM moved)
), referred AS MATERIALIZED (
    SELECT DISTINCT d.refclassid, d.refobjid
    FROM pg_depend AS d JOIN inside AS i USING (classid, objid)
), extended AS MATERIALIZED (
    SELECT r.refclassid, r.refobjid, e.refobjid AS extension
    FROM referred AS r
    JOIN pg_depend AS e ON e.classid = r.refclassid AND e.objid = r.refobjid
                       AND e.refclassid = 'pg_extension'::regclass AND e.deptype = 'e'
), own AS (
    SELECT refclassid, refobjid FROM referred
    EXCEPT SELECT refclassid, refobjid FROM extended
), used (name, type) AS (
    -- The types that the values of columns are made of.
    SELECT m.nspname || '.' || c.relname, a.atttypid FROM moved AS m
    JOIN pg_class AS c ON c.relnamespace = m.oid AND c.relkind = 'r'
    JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    UNION
    SELECT u.name, h.inside FROM used AS u JOIN held AS h ON h.outside = u.type
)
SELECT DISTINCT 'extension', e.extname::text FROM pg_extension AS e
WHERE e.oid IN (SELECT extension FROM extended
                UNION ALL SELECT refobjid FROM referred
                          WHERE refclassid = 'pg_extension'::regclass)
UNION
-- An array has its element's name and more.
SELECT 'type', coalesce(e.oid, t.oid)::regtype::text
FROM own AS o JOIN pg_type AS t ON t.oid = o.refobjid
LEFT JOIN pg_type AS e ON e.typarray = t.oid
WHERE o.refclassid = 'pg_type'::regclass AND t.typnamespace NOT IN (SELECT oid FROM moved)
UNION
SELECT 'function', p.oid::regprocedure::text FROM own AS o JOIN pg_proc AS p ON p.oid = o.refobjid
WHERE o.refclassid = 'pg_proc'::regclass AND p.pronamespace NOT IN (SELECT oid FROM moved)
  AND p.pronamespace IS DISTINCT FROM to_regnamespace('shardctl')::oid -- those are shardctl's business
UNION
SELECT 'relation', c.oid::regclass::text FROM own AS o JOIN pg_class AS c ON c.oid = o.refobjid
WHERE o.refclassid = 'pg_class'::regclass AND c.relnamespace NOT IN (SELECT oid FROM moved)
  AND c.relnamespace <> 'pg_toast'::regnamespace
UNION
SELECT 'collation', c.oid::regcollation::text
FROM own AS o JOIN pg_collation AS c ON c.oid = o.refobjid
WHERE o.refclassid = 'pg_collation'::regclass
  AND c.collnamespace NOT IN (SELECT oid FROM moved)
UNION
SELECT 'role', r.rolname::text FROM pg_shdepend AS d
JOIN inside AS i ON i.classid = d.classid AND i.objid = d.objid
JOIN pg_roles AS r ON r.oid = d.refobjid
WHERE d.refclassid = 'pg_authid'::regclass
  AND d.dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
UNION
-- On the role that made the server nothing depends.
SELECT 'role', r.rolname::text FROM pg_roles AS r
WHERE r.oid IN (SELECT nspowner FROM moved
                UNION SELECT relowner FROM pg_class WHERE relnamespace IN (SELECT oid FROM moved))
UNION SELECT 'lc_monetary', name FROM used WHERE type = 'money'::regtype
UNION SELECT 'tablespace', s.spcname::text FROM pg_class AS c
      JOIN pg_tablespace AS s ON s.oid = c.reltablespace
      WHERE c.relnamespace IN (SELECT oid FROM moved)
UNION VALUES ('encoding', 'encoding'), ('locale', 'locale')
ORDER BY 1, 2
-- then
WITH named (kind, name) AS MATERIALIZED (
    SELECT n ->> 0, n ->> 1 FROM jsonb_array_elements(%(named)s::jsonb) AS n
), found (kind, name, compared, shown) AS (
    -- Versions as texts that compare as their numbers do.
    SELECT 'extension', e.extname::text,
           (SELECT coalesce(string_agg(lpad(v[1], 20, '0'), '.'), '')
            FROM regexp_matches(e.extversion, '\d+', 'g') AS v),
           e.extversion FROM pg_extension AS e
    UNION ALL
    SELECT 'type', u.name, def.text, def.text
    FROM named AS u JOIN pg_type AS t ON t.oid = to_regtype(u.name)
    CROSS JOIN LATERAL (
        SELECT concat_ws(' ', t.typtype, CASE t.typtype WHEN 'd' THEN t.typbasetype::regtype::text END,
                       CASE WHEN t.typnotnull THEN 'not null' END,
                       (SELECT string_agg(quote_literal(e.enumlabel), ', ' ORDER BY e.enumsortorder)
                        FROM pg_enum AS e WHERE e.enumtypid = t.oid),
                       (SELECT string_agg(a.attname || ' ' || format_type(a.atttypid, a.atttypmod), ', '
                                          ORDER BY a.attnum)
                        FROM pg_attribute AS a
                        WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped),
                       (SELECT string_agg(pg_get_constraintdef(k.oid), ', ' ORDER BY k.conname)
                        FROM pg_constraint AS k WHERE k.contypid = t.oid AND k.contype = 'c'))
    ) AS def (text) WHERE u.kind = 'type'
    UNION ALL
    SELECT u.kind, u.name, '', '' FROM named AS u
    WHERE CASE u.kind WHEN 'function' THEN to_regprocedure(u.name) IS NOT NULL
                      WHEN 'relation' THEN to_regclass(u.name) IS NOT NULL
                      WHEN 'role' THEN u.name IN (SELECT rolname FROM pg_roles)
                      WHEN 'tablespace' THEN u.name IN (SELECT spcname FROM pg_tablespace) END
    UNION ALL
    SELECT 'collation', u.name, def.text, def.text
    FROM named AS u JOIN pg_collation AS c ON c.oid = to_regcollation(u.name)
    CROSS JOIN LATERAL (
        SELECT concat_ws(' ', c.collprovider, c.collcollate, c.collctype,
                         coalesce(to_jsonb(c) ->> 'colllocale', to_jsonb(c) ->> 'colliculocale'),
                         CASE WHEN NOT c.collisdeterministic THEN 'nondeterministic' END)
    ) AS def (text) WHERE u.kind = 'collation'
    UNION ALL SELECT 'lc_monetary', u.name, replace(lower(m.setting), '-', ''), m.setting
              FROM named AS u CROSS JOIN pg_settings AS m
              WHERE u.kind = 'lc_monetary' AND m.name = 'lc_monetary'
    UNION ALL
    SELECT 'encoding', 'encoding', pg_encoding_to_char(encoding), pg_encoding_to_char(encoding)
    FROM pg_database WHERE datname = current_database()
    UNION ALL
    -- As all systems would write it: en_US.utf8 is en_US.UTF-8.
    SELECT 'locale', 'locale',
           replace(lower(concat_ws(' ', l.provider, d.datcollate, d.datctype, l.locale)), '-', ''),
           coalesce(l.locale, d.datcollate)
    FROM pg_database AS d
    CROSS JOIN LATERAL (VALUES (coalesce(to_jsonb(d) ->> 'datlocprovider', 'c'),
                                coalesce(to_jsonb(d) ->> 'datlocale', to_jsonb(d) ->> 'daticulocale'))
                       ) AS l (provider, locale)
    WHERE d.datname = current_database()
)
SELECT f.* FROM found AS f JOIN named AS n USING (kind, name) ORDER BY 1, 2
