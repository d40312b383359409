-- name: events
-- The newest events of this node, with the migrations that ran in the run that each ends
WITH chosen AS (
    SELECT id, at, who, command, result FROM shardctl.event
    WHERE id > %(after)s
      AND (%(since)s::timestamptz IS NULL OR at >= %(since)s
           -- The last ones always, so that a follower knows which of them are not new.
           OR id > (SELECT max(id) - %(late)s FROM shardctl.event))
    ORDER BY id DESC LIMIT %(limit)s
), run AS (
    -- A command holds the node's lock from `begun` to its end: what ran meanwhile is its own.
    SELECT e.id, e.at, max(b.at) AS begun
    FROM chosen AS e JOIN shardctl.event AS b ON b.id < e.id AND b.command = e.command
    WHERE b.result = 'begun' AND (e.result = 'done' OR e.result LIKE 'unfinished: %%')
    GROUP BY e.id, e.at
), ran AS MATERIALIZED (
    -- The shards of a chunk have one time.
    SELECT DISTINCT file, ran_at FROM shardctl.migration
    WHERE ran_at >= (SELECT min(begun) FROM run)
)
SELECT c.id, c.at, c.who, c.command, c.result,
       ARRAY(SELECT DISTINCT m.file FROM run AS r JOIN ran AS m ON m.ran_at BETWEEN r.begun AND r.at
             WHERE r.id = c.id ORDER BY 1)
FROM chosen AS c ORDER BY c.id

-- name: rights
-- Whether the journal of moves exists and this role may read it
SELECT coalesce(has_table_privilege(to_regclass('shardctl.move'), 'SELECT'), false)

-- name: clones
-- From which node to which a move has cloned a server, and so its events
SELECT DISTINCT source, target FROM shardctl.move WHERE method = 'clone'
