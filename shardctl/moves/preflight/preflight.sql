-- name: read_only
-- This session changes nothing, and waits only briefly for locks
SELECT set_config('default_transaction_read_only', 'on', false),
       set_config('lock_timeout', %(lock_timeout)s, false)

-- name: server
-- Version, role and size of this server; the size is null without the right to read it
SELECT current_setting('server_version_num')::integer, current_setting('server_version'),
       pg_is_in_recovery(),
       CASE WHEN pg_has_role('pg_read_all_stats', 'USAGE')
            THEN (SELECT sum(pg_tablespace_size(oid)) FROM pg_tablespace)::bigint END

-- name: settings
-- Parameters in force, by name
SELECT name, setting FROM pg_settings WHERE name = ANY (%(names)s)

-- name: databases
-- The databases that accept connections
SELECT datname::text FROM pg_database WHERE datallowconn ORDER BY 1

-- name: modules
-- Files of functions in C, and one thing of each that needs it
SELECT p.probin, coalesce('extension ' || min(e.extname::text),
                          'function ' || min(p.oid::regprocedure::text))
FROM pg_proc AS p
LEFT JOIN pg_depend AS d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid
     AND d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
LEFT JOIN pg_extension AS e ON e.oid = d.refobjid
WHERE p.probin IS NOT NULL GROUP BY p.probin ORDER BY p.probin

-- name: tables
-- Tables and sequences but the system's, an extension's, shardctl's and those in known schemas
SELECT n.nspname || '.' || c.relname, count(*) OVER ()
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'S')
  AND n.nspname NOT IN ('pg_catalog', 'pg_toast', 'information_schema', 'shardctl')
  AND n.nspname !~ '^pg_(toast_)?temp_' AND n.nspname !~ '__retired_[0-9a-f]{8}$'
  AND NOT EXISTS (SELECT FROM unnest(%(known)s::name[]) AS u (name) WHERE u.name = n.nspname)
  -- An extension's, or a column's own sequence, which goes with its table.
  AND NOT EXISTS (SELECT FROM pg_depend AS d
                  WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid
                    AND (d.deptype = 'e' OR (c.relkind = 'S' AND d.deptype IN ('a', 'i')
                                             AND d.refclassid = 'pg_class'::regclass)))
ORDER BY 1 LIMIT %(shown)s

-- name: all_tables
-- How many tables a database has, but the system's
SELECT count(*) FROM pg_catalog.pg_class
WHERE relkind IN ('r', 'm')
  AND relnamespace NOT IN ('pg_catalog'::regnamespace, 'information_schema'::regnamespace)

-- name: transactions
-- Transactions of this database that are older, and whether they hold or await locks that writes take
SELECT a.pid, format('pid %%s (%%s, %%s s old)', a.pid,
                     coalesce(nullif(a.application_name, ''), a.usename::text, ''),
                     extract(epoch FROM clock_timestamp() - a.xact_start)::integer),
       a.pid IN (SELECT l.pid FROM pg_locks AS l
                 JOIN pg_class AS c ON c.oid = l.relation JOIN pg_namespace AS n ON n.oid = c.relnamespace
                 WHERE l.locktype = 'relation' AND l.mode NOT IN ('AccessShareLock', 'RowShareLock')
                   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
                   AND n.nspname = ANY (%(schemas)s::name[]))
FROM pg_stat_activity AS a
WHERE a.datname = current_database() AND a.pid <> pg_backend_pid()
  AND a.xact_start < clock_timestamp() - make_interval(secs => %(seconds)s)
  AND a.backend_type NOT IN ('autovacuum worker', 'walsender')
ORDER BY a.xact_start

-- name: database_collations
-- Databases that sort by the C library, and its version (from 15 on)
SELECT 'database ' || datname, pg_database_collation_actual_version(oid) FROM pg_database
WHERE datcollversion IS NOT NULL AND datallowconn AND datlocprovider = 'c' ORDER BY 1

-- name: collations
-- Other collations of the C library that columns and indexes use, and its version
SELECT n.nspname || '.' || c.collname, pg_collation_actual_version(c.oid)
FROM pg_collation AS c JOIN pg_namespace AS n ON n.oid = c.collnamespace
WHERE c.collversion IS NOT NULL AND c.collprovider = 'c'
  AND c.oid IN (SELECT a.attcollation FROM pg_attribute AS a WHERE a.attrelid >= 16384)
ORDER BY 1

-- name: event_made
-- What a move changes in a catalog, on objects of its own; to be rolled back
CREATE SCHEMA {schema};
SET LOCAL search_path TO {schema}, pg_catalog;
CREATE TABLE photos (id bigint);

-- name: event_published
-- What it does besides on both nodes of a stream
CREATE PUBLICATION {name} FOR TABLE photos;
DROP PUBLICATION {name};

-- name: event_subscribed
-- What it does besides on the target of a stream: it connects to nothing
CREATE SUBSCRIPTION {name} CONNECTION 'password=none' PUBLICATION {name}
    WITH (connect = false, slot_name = NONE);
ALTER SUBSCRIPTION {name} DISABLE;
DROP SUBSCRIPTION {name};

-- name: event_renamed
-- What it does at last
ALTER SCHEMA {schema} RENAME TO {name}

-- name: patroni
-- Whether Patroni has a session here, and its file may be read
SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name ~ '^Patroni( |$)'
                                              AND backend_type = 'client backend'),
       has_function_privilege('pg_stat_file(text,boolean)', 'EXECUTE')
       AND has_function_privilege('pg_read_binary_file(text)', 'EXECUTE')

-- name: patroni_settings
-- Whether it is paused by the copy of its settings that Patroni keeps beside the data
SELECT CASE WHEN (pg_stat_file('patroni.dynamic.json', true)).size IS NOT NULL
            THEN convert_from(pg_read_binary_file('patroni.dynamic.json'), 'UTF8')::jsonb END

-- name: try_subscription
-- Log in to a source as a subscription does; to be rolled back. Of a publication that is there, the
-- tables would be looked for here
CREATE SUBSCRIPTION {name} CONNECTION {conninfo} PUBLICATION {absent}
WITH (connect = true, create_slot = false, slot_name = NONE, enabled = false, copy_data = false)
