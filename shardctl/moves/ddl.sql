-- name: note
-- What the structure of the moved shards is when it is copied; nothing publishes this row
INSERT INTO shardctl.stream (move, attempt, what, note)
VALUES (%(move)s, 0, 'structure', %(note)s)
ON CONFLICT (move, attempt, what) DO UPDATE SET note = excluded.note, at = clock_timestamp()

-- name: noted
-- What it was then
SELECT note->>'digest' FROM shardctl.stream WHERE move = %(move)s AND attempt = 0 AND what = 'structure'

-- name: noted_parts
-- The same of each object
SELECT note->'parts' FROM shardctl.stream WHERE move = %(move)s AND attempt = 0 AND what = 'structure'
