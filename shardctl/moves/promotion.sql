-- name: serves
-- Whether this server has claimed the shards, and has read the files with which it accepts all
-- connections
SELECT EXISTS (
    SELECT FROM shardctl.move
    WHERE id = {move} AND (state = ANY ({later})
                           OR (state = 'claimed' AND pg_conf_load_time() > changed
                               AND (pg_stat_file({waiting}, true)).size IS NULL)))

-- name: snapshot
-- Export a snapshot for other sessions; list the subscriptions that would run
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
SELECT pg_export_snapshot(),
       ARRAY(SELECT subname::text FROM pg_catalog.pg_subscription WHERE subenabled ORDER BY 1)

-- name: warm
-- Read the moved shards' sequences, so that this session's caches have them when clients wait
SELECT count(pg_sequence_last_value(to_regclass(pg_catalog.format('%%I.%%I', u.schema, s.name))))
FROM unnest(%(schemas)s::name[]) AS u (schema), unnest(%(names)s::name[]) AS s (name)

-- name: written
-- Tables of shards that stay on the source which were written to here: replay does not count
SELECT schemaname || '.' || relname FROM pg_stat_user_tables
WHERE schemaname = ANY (%(retired)s) AND n_tup_ins + n_tup_upd + n_tup_del > 0 ORDER BY 1

-- name: counted
-- Whether this server's counts reach back to its promotion (whole seconds): a crash sets them to 0
SELECT (SELECT stats_reset FROM pg_stat_bgwriter)
       < (SELECT max(modification) + '1 s' FROM pg_ls_waldir() WHERE name LIKE '%.history')

-- name: prepared
-- Prepared transactions that the clone has copied, and their owners
SELECT gid, owner::text FROM pg_prepared_xacts WHERE database = current_database()

-- name: foreign
-- Prepared transactions of the source that only another role than this one may end
SELECT quote_literal(gid) || ' of ' || owner FROM pg_prepared_xacts
WHERE database = current_database() AND owner <> current_user
  AND NOT (SELECT rolsuper FROM pg_roles WHERE rolname = current_user)

-- name: claim
-- Moved schemas get their names back and take writes, and the map says so: one transaction, which
-- commits what the blocks have written, too
BEGIN;
SET LOCAL synchronous_commit TO off;
-- A prepared transaction may lock a sequence, and the claim would wait for it.
DO $prepared$
BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_prepared_xacts
               WHERE database = pg_catalog.current_database()) THEN
        RAISE EXCEPTION 'there are prepared transactions' USING ERRCODE = 'SH004';
    END IF;
END
$prepared$;
{blocks};
COMMIT;
BEGIN;
-- Before the block: no name in it could end it.
SELECT set_config('shardctl.leaving', {leaving}::text[]::text, true),
       set_config('shardctl.left_as', {left_as}::text[]::text, true);
DO $claim$
DECLARE
    one record;
BEGIN
    PERFORM pg_catalog.set_config('synchronous_commit', 'local', true);
    {owning}
END
$claim$;
COMMIT;
{last}

-- name: own_node
-- Part of a claim: what stays on the source loses its names, and the node gets its own identity
FOR one IN
    SELECT u.schema, u.retired
    FROM unnest(pg_catalog.current_setting('shardctl.leaving')::name[],
                pg_catalog.current_setting('shardctl.left_as')::name[]) AS u (schema, retired)
    JOIN pg_catalog.pg_namespace AS n ON n.nspname = u.schema
LOOP
    EXECUTE pg_catalog.format('ALTER SCHEMA %I RENAME TO %I', one.schema, one.retired);
END LOOP;
UPDATE shardctl.cluster SET node = {target}, identity = pg_catalog.gen_random_uuid();
