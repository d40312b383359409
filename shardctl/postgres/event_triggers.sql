-- name: in_force
-- Event triggers that fire for one of these statements, or for any where tags is NULL; none on a
-- standby, where nothing can be tried
SELECT evtname::text FROM pg_event_trigger
WHERE evtenabled <> 'D' AND evtevent <> 'login' AND NOT pg_is_in_recovery()
  AND (%(tags)s::text[] IS NULL OR evttags IS NULL OR evttags && %(tags)s::text[])
ORDER BY 1

-- name: read_only
-- What makes a table refuse writes
CREATE TEMP TABLE shardctl_rehearsal (id bigint);
CREATE TRIGGER shardctl_read_only BEFORE TRUNCATE ON pg_temp.shardctl_rehearsal
    FOR EACH STATEMENT EXECUTE FUNCTION shardctl.refuse_write();
ALTER TABLE ONLY pg_temp.shardctl_rehearsal ENABLE ALWAYS TRIGGER shardctl_read_only

-- name: prune
-- What drops a retired shard
CREATE SCHEMA shardctl_rehearsal;
DROP SCHEMA shardctl_rehearsal
