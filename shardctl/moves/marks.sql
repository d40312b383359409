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
