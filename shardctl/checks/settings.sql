-- name: found
-- Parameters that are not as they should be: the code of a rule, the parameter, the words of its texts
SELECT s.name || '_' || s.setting, s.name, jsonb_build_object()
FROM pg_settings AS s
WHERE (s.name, s.setting) IN (
    VALUES ('fsync', 'off'), ('full_page_writes', 'off'), ('autovacuum', 'off'), ('track_counts', 'off'),
           ('zero_damaged_pages', 'on'), ('ignore_checksum_failure', 'on'), ('hot_standby', 'off'),
           ('wal_level', 'minimal'))
UNION ALL
SELECT few.code, few.name, jsonb_build_object('most', current_setting(few.name), 'used', few.used,
                                              'free', few.free, 'least', few.used + few.free)
FROM (VALUES ('wal_senders_few', 'max_wal_senders',
              (SELECT count(*) FROM pg_stat_get_wal_senders()), %(senders)s),
             ('replication_slots_few', 'max_replication_slots',
              (SELECT count(*) FROM pg_replication_slots), 1)) AS few (code, name, used, free)
-- With wal_level minimal there can be none.
WHERE current_setting(few.name)::bigint - few.used < few.free
  AND current_setting('wal_level') <> 'minimal'
UNION ALL
SELECT 'lock_table_small', 'max_locks_per_transaction',
       jsonb_build_object('slots', slots, 'relations', relations, 'needed', relations * %(shards)s,
                          'at_once', %(shards)s, 'least', ceil(relations * %(shards)s / sessions))
FROM (SELECT current_setting('max_connections')::numeric
             + current_setting('max_prepared_transactions')::numeric AS sessions) AS a,
     LATERAL (SELECT current_setting('max_locks_per_transaction')::bigint * sessions AS slots) AS b,
     -- With its TOAST table and that one's index, which DROP locks too.
     (SELECT count(*) + 2 * count(*) FILTER (WHERE c.reltoastrelid <> 0) AS relations
      FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
      WHERE n.nspname = ANY (%(schemas)s) GROUP BY n.oid ORDER BY 1 DESC LIMIT 1) AS largest
WHERE slots < relations * %(shards)s
UNION ALL
SELECT 'restart_pending', name, jsonb_build_object('value', quote_literal(setting))
FROM (SELECT name, setting FROM pg_settings WHERE pending_restart ORDER BY name) AS pending
