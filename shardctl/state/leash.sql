-- name: watch
-- Watch one slot until it is gone: at its limit end its walsenders, drop it, and report it. One that
-- is kept for a reverse is dropped, too, when the move has been over for that long
DO $leash$
DECLARE
    began    timestamptz := pg_catalog.clock_timestamp();
    seen     boolean := false;
    held     bigint;
    sender   integer;
    changing boolean;
    overdue  boolean;
    dropped  boolean;
BEGIN
    LOOP
        SELECT s.active_pid, pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_lsn(), s.restart_lsn)
        INTO sender, held FROM pg_catalog.pg_replication_slots AS s WHERE s.slot_name = {slot};
        seen := seen OR FOUND;
        -- It is armed before the slot is made, so that no slot is ever without it.
        EXIT WHEN NOT FOUND AND (seen OR pg_catalog.clock_timestamp() > began + interval '60 s');
        changing := false;
        overdue := false;
        BEGIN
            -- A fence lasts no longer than its guard allows; without the slot it would be undone.
            -- Behind the decision the target may need the slot to claim; not for ever.
            SELECT m.state = ANY ({fenced})
                       AND (m.state <> 'promoting'
                            OR pg_catalog.clock_timestamp() < m.changed + interval '60 s'),
                   coalesce(m.state IN ('done', 'unconfirmed')
                            AND pg_catalog.clock_timestamp() > m.ended + {keep}::interval, false)
            INTO changing, overdue FROM shardctl.move AS m WHERE m.id = {move};
        EXCEPTION WHEN undefined_table OR lock_not_available THEN
            NULL;  -- the disk matters more than a journal that cannot be read
        END;
        IF (held > {limit} OR overdue) AND changing IS NOT TRUE THEN
            BEGIN
                PERFORM pg_catalog.pg_terminate_backend(a.pid) FROM pg_catalog.pg_stat_activity AS a
                WHERE a.pid = sender
                   OR (a.backend_type = 'walsender' AND a.application_name = {slot});
                PERFORM pg_catalog.pg_drop_replication_slot({slot});
                dropped := true;
            EXCEPTION WHEN object_in_use THEN
                NULL;  -- the walsender is still running: try again
            END;
            EXIT WHEN dropped;
        END IF;
        COMMIT;  -- so that no snapshot is older than one sleep
        PERFORM pg_catalog.pg_sleep(0.5);
    END LOOP;
    COMMIT;
    IF dropped THEN
        -- The raised revision keeps a cutover from beginning without the slot.
        UPDATE shardctl.move
        SET revision = revision + 1,
            report = coalesce(report, '{{}}') || pg_catalog.jsonb_build_object(
                'wal_limit', pg_catalog.jsonb_build_object('held_bytes', held, 'limit_bytes', {limit}))
        WHERE id = {move} AND state = ANY ({waiting});
        INSERT INTO shardctl.event (who, command, result)
        VALUES ({who}, 'move-shards', pg_catalog.format(
            CASE WHEN overdue
                 THEN 'move %s: dropped slot %s: the time in which it could be reversed is over'
                 ELSE 'move %s: dropped slot %s, which held back %s bytes of WAL: the limit is %s' END,
            {move}, {slot}, held, {limit}));
    END IF;
END
$leash$

-- name: of_slots
-- Part of others: sessions that watch one of these slots, or have: of this role, as names are free
FROM unnest({slots}::text[]) AS s (slot)
JOIN pg_catalog.pg_stat_activity AS a ON a.application_name = 'shardctl guard of ' || s.slot
WHERE a.usename = current_user AND a.datname = pg_catalog.current_database()

-- name: settings
-- Let this session be found by its slot; to a client that is gone nothing may be sent: the second
-- message would end the session
SELECT pg_catalog.set_config('application_name', 'shardctl guard of ' || {slot}, false),
       pg_catalog.set_config('client_min_messages', 'error', false),
       pg_catalog.set_config('client_connection_check_interval', '0', false),
       pg_catalog.set_config('lock_timeout', '1s', false)

-- name: watched
-- Those of some slots that are watched at this moment, and not by a session that has ended that
SELECT s.slot {of_slots} AND a.state = 'active'

-- name: end
-- End what watches a slot, running or not
SELECT pg_catalog.pg_terminate_backend(a.pid, 5000) {of_slots}
