-- name: settings
-- The server's parameters by name
SELECT name, setting FROM pg_settings WHERE name = ANY (%(names)s)

-- name: used
-- WAL senders and replication slots in use, the relations of the shard that has most, and the
-- parameters that wait for a restart
SELECT (SELECT count(*) FROM pg_stat_get_wal_senders()),
       (SELECT count(*) FROM pg_replication_slots),
       -- With its TOAST table and that one's index, which DROP locks too.
       (SELECT coalesce(max(of_one.relations), 0)::bigint
        FROM (SELECT count(*) + 2 * count(*) FILTER (WHERE c.reltoastrelid <> 0) AS relations
              FROM pg_class AS c
              JOIN pg_namespace AS n ON n.oid = c.relnamespace
              WHERE n.nspname = ANY (%(schemas)s)
              GROUP BY n.oid) AS of_one),
       ARRAY(SELECT name || ' = ' || quote_literal(setting)
             FROM pg_settings WHERE pending_restart ORDER BY name)
