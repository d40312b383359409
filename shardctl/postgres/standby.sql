-- name: slot
-- One replication slot: why its WAL is lost, in PostgreSQL's word, bytes of WAL that it holds back,
-- and bytes that its target has not confirmed
SELECT CASE s.wal_status WHEN 'lost'
            THEN coalesce(to_jsonb(s) ->> 'invalidation_reason', 'wal_removed') END,
       coalesce(pg_wal_lsn_diff(w.at, s.restart_lsn), 0)::bigint,
       greatest(coalesce(pg_wal_lsn_diff(w.at, s.confirmed_flush_lsn), 0), 0)::bigint
FROM pg_replication_slots AS s,
     (SELECT CASE WHEN NOT pg_is_in_recovery() THEN pg_current_wal_lsn() END) AS w (at)
WHERE s.slot_name = %(name)s

-- name: make_slot
-- Make it, and keep WAL from now on: not from the last checkpoint, for a copy makes its own
SELECT pg_replication_slot_advance(slot_name, pg_current_wal_flush_lsn())
FROM pg_create_physical_replication_slot(%(name)s, immediately_reserve => true)

-- name: drop_slot
-- Drop it; a row when it existed
SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %(name)s

-- name: end_users
-- End the walsenders of this application_name; the client of the slot, or one of them that is still ending
SELECT a.pid, a.application_name, host(a.client_addr), pg_terminate_backend(a.pid)
FROM pg_stat_activity AS a
WHERE a.backend_type = 'walsender' AND a.application_name = %(name)s
UNION ALL
SELECT s.active_pid, a.application_name, host(a.client_addr), false
FROM pg_replication_slots AS s
LEFT JOIN pg_stat_activity AS a ON a.pid = s.active_pid
WHERE s.slot_name = %(name)s AND s.active

-- name: backup_progress
-- The progress of the base backup with this application_name; no row when none runs
SELECT p.phase, p.backup_streamed, p.backup_total
FROM pg_stat_progress_basebackup AS p
JOIN pg_stat_activity AS a ON a.pid = p.pid
WHERE a.application_name = %(name)s

-- name: settings
-- The parameters that the server was given, as they are in force, but for those that no clone gets of it
SELECT name, setting FROM (
    SELECT name, setting FROM pg_settings
    WHERE source IN ('configuration file', 'command line', 'environment variable')
    UNION ALL
    -- Those that this very session, or its role, has otherwise hide what the files have.
    (SELECT DISTINCT ON (s.name) s.name, f.setting
     FROM pg_file_settings AS f
     JOIN pg_settings AS s ON lower(s.name) = lower(f.name)
     WHERE f.applied
       AND s.source IN ('client', 'session', 'user', 'database', 'database user', 'global')
     ORDER BY s.name, f.seqno DESC)) AS given
WHERE name !~ '^(archive|primary|recovery|restore)_'
  AND name NOT IN ('config_file', 'data_directory', 'external_pid_file', 'hba_file', 'ident_file',
                   'promote_trigger_file', 'sync_replication_slots', 'synchronized_standby_slots',
                   'synchronous_standby_names')
ORDER BY 1

-- name: files
-- The files that name who may log in: name, whether it lies beside the data, and what it holds
SELECT setting,
       regexp_replace(setting, '/[^/]*$', '') = current_setting('data_directory'),
       pg_read_binary_file(setting)
FROM pg_settings WHERE name IN ('hba_file', 'ident_file') ORDER BY name

-- name: rules
-- The lines by which one role may log in over TCP from some addresses, in the order of the rules: the
-- part of each rule that is these addresses'. What names of hosts, samehost and samenet match only the
-- server knows: they stay
WITH RECURSIVE group_of (oid, name) AS (
    SELECT oid, rolname FROM pg_roles WHERE rolname = %(user)s
    UNION
    SELECT r.oid, r.rolname
    FROM group_of AS g
    JOIN pg_auth_members AS m ON m.member = g.oid
    JOIN pg_roles AS r ON r.oid = m.roleid
), rule AS (
    SELECT h.*, CASE WHEN netmask IS NOT NULL THEN split_part(address, '%%', 1)::inet END AS ip
    FROM pg_hba_file_rules() WITH ORDINALITY AS h
    WHERE error IS NULL AND type <> 'local' AND database <> '{replication}'
      AND EXISTS (SELECT FROM unnest(user_name) AS u
                  WHERE u IN ('all', %(user)s)
                     OR (left(u, 1) = '+' AND substr(u, 2) IN (SELECT name FROM group_of))
                     OR (left(u, 1) = '/' AND %(user)s ~ substr(u, 2)))
)
SELECT concat_ws(' ', r.type,
                 (SELECT string_agg(CASE d WHEN 'all' THEN d ELSE quote_ident(d) END, ',')
                  FROM unnest(r.database) AS d),
                 quote_ident(%(user)s),
                 CASE WHEN r.address = 'all' THEN network(o.net)::text
                      WHEN r.netmask IS NULL THEN quote_ident(r.address)
                      ELSE network(CASE WHEN masklen(t.net) > masklen(o.net) THEN t.net ELSE o.net END)::text
                 END,
                 r.auth_method,
                 (SELECT string_agg(quote_ident(option), ' ') FROM unnest(r.options) AS option))
FROM rule AS r
LEFT JOIN LATERAL (
    SELECT set_masklen(r.ip, bits) AS net
    FROM generate_series(0, CASE family(r.ip) WHEN 4 THEN 32 ELSE 128 END) AS bits
    WHERE netmask(set_masklen(r.ip, bits)) = split_part(r.netmask, '%%', 1)::inet
) AS t ON true
JOIN unnest(%(addresses)s::inet[]) WITH ORDINALITY AS o (net, place)
  ON CASE WHEN r.address = 'all' THEN true WHEN r.netmask IS NULL THEN o.place = 1 ELSE o.net && t.net END
ORDER BY r.ordinality, o.place

-- name: following
-- The position of a standby
SELECT pg_is_in_recovery(), coalesce(pg_last_wal_replay_lsn(), '0/0'),
       coalesce((SELECT status FROM pg_stat_wal_receiver), '')

-- name: followed
-- Where the source is, and whether something streams from the slot whose feedback has arrived
SELECT pg_current_wal_lsn(),
       coalesce((SELECT active AND xmin IS NOT NULL FROM pg_replication_slots
                 WHERE slot_name = %(slot)s), false)

-- name: promote
-- Promote it, and wait in the server, which needs no message a poll; its own wait sleeps 100 ms;
-- then whether it is a standby still
DO $promote$
BEGIN
    IF pg_is_in_recovery() THEN
        PERFORM pg_promote(wait => false);
    END IF;
    FOR poll IN 1..{polls} LOOP
        EXIT WHEN NOT pg_is_in_recovery();
        PERFORM pg_sleep(0.001);
    END LOOP;
END
$promote$;
SELECT pg_is_in_recovery()

-- name: not_closed
-- Rules by which roles other than shardctl's may log in, and parameters that are not as they must be
SELECT 'pg_hba.conf, line ' || line_number || ' accepts ' || array_to_string(user_name, ',')
FROM pg_hba_file_rules WHERE error IS NULL AND user_name <> ARRAY[%(user)s]
UNION ALL
SELECT s.name || ' is ' || s.setting
FROM pg_settings AS s
JOIN unnest(%(names)s::text[], %(settings)s::text[]) AS wanted (name, setting) USING (name)
WHERE s.setting NOT IN (wanted.setting, '(disabled)') -- as archive_command is with archive_mode off
  -- This session's own value hides what others get.
  AND (s.source <> 'client' OR (SELECT f.setting FROM pg_file_settings AS f
                                WHERE lower(f.name) = s.name AND f.applied) IS DISTINCT FROM wanted.setting)

-- name: open
-- Put the node's own files into force, all within the server: programs begin in its directory
COPY (SELECT WHERE false) TO PROGRAM {program};
SELECT pg_conf_load_time() FROM pg_reload_conf()

-- name: files_read
-- When the files were read, and whether no line keeps pg_hba.conf from that
SELECT pg_conf_load_time(),
       NOT EXISTS (SELECT FROM pg_hba_file_rules
                   WHERE error IS NOT NULL AND position(' cannot match ' IN error) = 0)

-- name: refused
-- Lines that keep pg_hba.conf or the parameters from being read; not those that only never match, or
-- wait for a start
(SELECT 'pg_hba.conf, line ' || line_number || ': ' || error FROM pg_hba_file_rules
 WHERE error IS NOT NULL AND position(' cannot match ' IN error) = 0 ORDER BY line_number)
UNION ALL
(SELECT f.name || ': ' || f.error
 FROM pg_file_settings AS f LEFT JOIN pg_settings AS s ON lower(s.name) = lower(f.name)
 WHERE f.error IS NOT NULL AND f.name IS NOT NULL AND NOT coalesce(s.pending_restart, false)
 ORDER BY f.name)

-- name: waiting
-- Parameters whose new values wait for a start
SELECT name FROM pg_settings WHERE pending_restart ORDER BY name

-- name: history
-- The history of the timeline on which a server writes
SELECT pg_read_file('pg_wal/' || timeline || '.history', 0, 1048576, true)
FROM (SELECT left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) AS timeline) AS now

-- name: end_sessions
-- End the other sessions of clients with this application_name, and list them
SELECT pid FROM (
    SELECT pid, pg_catalog.pg_terminate_backend(pid)
    FROM pg_catalog.pg_stat_activity
    WHERE application_name = %(name)s AND backend_type = 'client backend'
      AND datname = current_database() AND pid <> pg_backend_pid()
    OFFSET 0) AS ended
