-- name: may
-- Whether this role may read both tables, and write to them; false on a node of an older format
SELECT coalesce(bool_and(has_table_privilege(to_regclass('shardctl.' || name), 'SELECT')), false),
       coalesce(bool_and(has_table_privilege(to_regclass('shardctl.' || name), 'INSERT')
                         AND has_table_privilege(to_regclass('shardctl.' || name), 'UPDATE')), false)
FROM unnest(ARRAY['rebalance', 'drain']) AS name

-- name: groups
-- Every rebalance that this node knows of, with the plan of those that may matter
SELECT id, revision, state,
       CASE WHEN state IN ('running', 'paused') OR started = max(started) OVER () THEN plan
            ELSE '{}' END AS plan,
       who, started, changed
FROM shardctl.rebalance

-- name: of_move
-- The rebalance whose plan has a move
SELECT id FROM shardctl.rebalance
WHERE plan -> 'moves' @> jsonb_build_array(jsonb_build_object('move', %(move)s::text))

-- name: write_group
-- A rebalance, unless this node has a newer copy
INSERT INTO shardctl.rebalance AS known (id, revision, state, plan, who, started, changed)
VALUES (%(id)s, %(revision)s, %(state)s, %(plan)s, %(who)s, %(started)s, %(changed)s)
ON CONFLICT (id) DO UPDATE
    SET revision = excluded.revision, state = excluded.state, plan = excluded.plan,
        changed = excluded.changed
    WHERE known.revision < excluded.revision

-- name: drains
-- Every node that was ever to be empty
SELECT node, revision, is_active, who, at FROM shardctl.drain

-- name: write_drain
-- Whether a node is to be empty, unless this node has a newer copy
INSERT INTO shardctl.drain AS known (node, revision, is_active, who, at)
VALUES (%(node)s, %(revision)s, %(is_active)s, %(who)s, %(at)s)
ON CONFLICT (node) DO UPDATE
    SET revision = excluded.revision, is_active = excluded.is_active, who = excluded.who,
        at = excluded.at
    WHERE known.revision < excluded.revision

-- name: try_lock
-- The lock of the one command that carries a rebalance out, between and in its moves
SELECT pg_try_advisory_lock(%(class)s, 2)

-- name: holder
-- Who holds that lock, since when
SELECT a.application_name, a.backend_start
FROM pg_locks AS l JOIN pg_stat_activity AS a ON a.pid = l.pid
WHERE l.locktype = 'advisory' AND l.granted
  AND l.classid = %(class)s AND l.objid = 2 AND l.objsubid = 2
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
