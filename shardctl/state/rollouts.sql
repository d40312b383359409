-- name: newest
-- The rollouts that this node knows, the newest ones
SELECT id, serial, state, files, waves, wave, options, seen, reason, who, began, changed
FROM shardctl.rollout ORDER BY began DESC LIMIT 20

-- name: write
-- A rollout as it is now; an older state does not replace a newer one
INSERT INTO shardctl.rollout (id, serial, state, files, waves, wave, options, seen, reason, who, began)
VALUES (%(id)s, %(serial)s, %(state)s, %(files)s, %(waves)s, %(wave)s, %(options)s, %(seen)s,
        %(reason)s, %(who)s, %(began)s)
ON CONFLICT (id) DO UPDATE
SET serial = excluded.serial, state = excluded.state, wave = excluded.wave,
    options = excluded.options, seen = excluded.seen, reason = excluded.reason,
    who = excluded.who, changed = pg_catalog.clock_timestamp()
WHERE rollout.serial < excluded.serial
