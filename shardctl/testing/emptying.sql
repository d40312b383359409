-- name: prepare
-- What the session needs that empties: no trigger, rule or foreign key acts, and no long wait
SET session_replication_role = replica;
SET lock_timeout = '5s'

-- name: filled
-- Tables that have pages, of shards and of whatever else migrations and tests have made
SELECT n.nspname::text, c.relname::text, pg_relation_size(c.oid)
FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND c.relpersistence <> 't'
  AND n.nspname NOT IN ('pg_catalog', 'pg_toast', 'information_schema', 'shardctl')
  AND pg_relation_size(c.oid) > 0
  AND NOT EXISTS (SELECT FROM pg_depend AS d
                  WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid
                    AND d.deptype = 'e')

-- name: end_left
-- End the sessions that have written in a transaction and neither commit it nor roll it back
SELECT pid, left(query, 80), pg_terminate_backend(pid, 5000)
FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
  AND backend_xid IS NOT NULL
  AND state IN ('idle in transaction', 'idle in transaction (aborted)')

-- name: versions
-- How many rows a table has, and a number that another version of any row would change
SELECT {position}, count(*), coalesce(sum(hashtextextended(ctid::text || xmin::text, 0)), 0)
FROM ONLY {table}

-- name: lock
-- Wait for all tables together, and so not long; what comes after it waits for nobody
SET LOCAL statement_timeout = {patience_ms};
LOCK TABLE ONLY {tables} IN {mode} MODE;
SET LOCAL statement_timeout = 0

-- name: holders
-- Who has tables in use; those who only read are in the way of TRUNCATE alone
SELECT held.pid, a.usename::text, a.application_name, a.state,
       extract(epoch FROM clock_timestamp() - a.state_change)::bigint, left(a.query, 80), held.tables
FROM (SELECT l.pid, string_agg(DISTINCT l.relation::regclass::text, ', ') AS tables
      FROM pg_locks AS l
      JOIN pg_class AS c ON c.oid = l.relation
      JOIN pg_namespace AS n ON n.oid = c.relnamespace
      WHERE l.locktype = 'relation' AND l.granted AND c.relkind = 'r'
        AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND n.nspname NOT IN ('pg_catalog', 'pg_toast', 'information_schema', 'shardctl')
        AND l.pid IS DISTINCT FROM pg_backend_pid()
        AND ({readers} OR l.mode <> 'AccessShareLock')
      GROUP BY l.pid) AS held
LEFT JOIN pg_stat_activity AS a USING (pid)
ORDER BY a.state_change
LIMIT 3

-- name: delete
-- Empty a table that is small
DELETE FROM ONLY {table}

-- name: truncate
-- Empty tables that are large, and those that refer to them
TRUNCATE ONLY {tables} CASCADE

-- name: save
-- Read a table's rows
COPY {table} TO STDOUT (FORMAT binary)

-- name: restore
-- Write a table's rows
COPY {table} FROM STDIN (FORMAT binary)
