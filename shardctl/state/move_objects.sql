-- name: objects
-- What moves have made in this database, or for it in the whole server, by kind, name and move
SELECT 'slot', s.slot_name::text, substr(s.slot_name, 10, 8),
       concat_ws(', ', s.slot_type, CASE WHEN s.active THEN 'active' ELSE 'inactive' END,
                 CASE WHEN s.wal_status = 'lost' THEN 'lost' END),
       pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
                            ELSE pg_current_wal_lsn() END, s.restart_lsn)::bigint
FROM pg_replication_slots AS s
WHERE s.slot_name ~ '^shardctl_[0-9a-f]{8}(_|$)' AND NOT s.temporary
  AND (s.database IS NULL OR s.database = current_database())
UNION ALL
SELECT 'subscription', s.subname::text, substr(s.subname, 10, 8),
       CASE WHEN s.subenabled THEN 'enabled' ELSE 'disabled' END, NULL
FROM pg_subscription AS s
WHERE s.subname ~ '^shardctl_[0-9a-f]{8}(_|$)'
  AND s.subdbid = (SELECT oid FROM pg_database WHERE datname = current_database())
UNION ALL
SELECT 'publication', p.pubname::text, substr(p.pubname, 10, 8), '', NULL
FROM pg_publication AS p WHERE p.pubname ~ '^shardctl_[0-9a-f]{8}(_|$)'
UNION ALL
-- By which the target of a stream claims.
SELECT 'function', p.proname::text, substr(p.proname, 10, 8), '', NULL
FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace
WHERE n.nspname = 'shardctl' AND p.proname ~ '^shardctl_[0-9a-f]{8}(_|$)'
UNION ALL
SELECT 'role', r.rolname::text, substr(r.rolname, 10, 8), '', NULL
FROM pg_roles AS r WHERE r.rolname ~ '^shardctl_[0-9a-f]{8}(_|$)'
UNION ALL
SELECT 'triggers', n.nspname::text, t.move,
       count(*) || CASE count(*) WHEN 1 THEN ' table' ELSE ' tables' END, NULL
FROM (SELECT DISTINCT g.tgrelid, split_part(encode(g.tgargs, 'escape'), '\000', 2) AS move
      FROM pg_trigger AS g
      WHERE g.tgname IN ('shardctl_copy', 'shardctl_copy_truncate')) AS t
JOIN pg_class AS c ON c.oid = t.tgrelid JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE t.move ~ '^[0-9a-f]{8}$'
GROUP BY n.nspname, t.move
ORDER BY 1, 2

-- name: records
-- Rows of moves in the tables of streams, and whether copies here accept writes
SELECT move, count(*), bool_or(is_open) FROM (
    SELECT move, NULL::boolean AS is_open FROM shardctl.stream
    UNION ALL SELECT move, is_open FROM shardctl.stream_copy
) AS r GROUP BY move ORDER BY move
