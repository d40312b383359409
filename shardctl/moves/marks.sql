-- name: put
-- Put a mark into a move's rows of this node; the stream of the move carries those of its source
INSERT INTO shardctl.stream (move, attempt, what, note)
VALUES (%(move)s, %(attempt)s, %(what)s, %(note)s)
ON CONFLICT (move, attempt, what) DO UPDATE SET at = clock_timestamp(), note = excluded.note

-- name: seen
-- Whether a mark is here
SELECT EXISTS (SELECT FROM shardctl.stream
               WHERE move = %(move)s AND attempt = %(attempt)s AND what = %(what)s)

-- name: last
-- The note of the last mark of a kind
SELECT note FROM shardctl.stream WHERE move = %(move)s AND what = %(what)s
ORDER BY attempt DESC LIMIT 1

-- name: notes
-- The notes of all marks of a kind, by attempt
SELECT attempt, note FROM shardctl.stream WHERE move = %(move)s AND what = %(what)s ORDER BY attempt

-- name: unclaimed
-- Hold a move's record on its target, and return whether the target has not claimed: a claim waits for it
SELECT true FROM shardctl.move WHERE id = %(move)s AND NOT state = ANY (%(claimed)s) FOR UPDATE

-- name: remove
-- Remove all marks of a kind
DELETE FROM shardctl.stream WHERE move = %(move)s AND what = %(what)s

-- name: forget
-- Remove all marks of a move
DELETE FROM shardctl.stream WHERE move = %(move)s

-- name: await
-- Wait a while for the fence's mark. Then put the target's own with a synchronous commit, if this is
-- the server that has the copy, and its subscription the one that has followed since then, and hold
-- what can be seen after it
BEGIN;
DO $await$
DECLARE
    until timestamptz := pg_catalog.clock_timestamp() + {seconds} * interval '1 second';
BEGIN
    WHILE NOT EXISTS (SELECT FROM shardctl.stream
                      WHERE move = {move} AND attempt = {attempt} AND what = {fence})
          AND pg_catalog.clock_timestamp() < until
    LOOP
        PERFORM pg_catalog.pg_sleep(0.001);
    END LOOP;
END
$await$;
INSERT INTO shardctl.stream (move, attempt, what)
SELECT f.move, f.attempt, {arrived}
FROM shardctl.stream AS f
JOIN shardctl.stream AS c ON c.move = f.move AND c.what = {copied}
JOIN shardctl.stream AS o ON o.move = f.move AND o.what = {subscribed}
JOIN pg_catalog.pg_subscription AS s
  ON s.oid = (o.note->>'oid')::oid AND s.subname = {subscription}
WHERE f.move = {move} AND f.attempt = {attempt} AND f.what = {fence}
  AND c.note->>'timeline' = pg_catalog.left(
      pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8)
ON CONFLICT (move, attempt, what) DO UPDATE SET at = pg_catalog.clock_timestamp()
RETURNING true;
COMMIT;
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
SELECT pg_catalog.pg_export_snapshot()
