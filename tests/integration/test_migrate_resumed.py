"""Files without a transaction that were stopped midway: each statement runs once."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from tests.fixtures.fleets.fleet import Fleet

TWO = "0002_two.sql"
HEAD = "-- shardctl: no-transaction\n"
VALID = "SELECT indisvalid FROM pg_index WHERE indexrelid = 'shard2.by_user'::regclass"
LEFT = "SELECT count(*) FROM shardctl.migration_begun"


def begun(one: Fleet, statement: int, *, running: bool = True) -> None:
    """Leave the row that a command leaves which was killed at this statement of shard 2."""
    [migration] = [m for m in one.plan().nodes[0].shards[0].migrations if m.name == TWO]
    one.execute(
        "a",
        "INSERT INTO shardctl.migration_begun (shard, file, checksum, statement, running)"
        f" VALUES (2, '{TWO}', '{migration.checksum}', {statement}, {running})",
    )


def invalid(one: Fleet) -> None:
    """Leave the invalid index that a killed CREATE INDEX CONCURRENTLY leaves in shard 2."""
    with one.connect("a") as session:
        session.execute("INSERT INTO shard2.photos (user_id) VALUES (1), (1)")
        with pytest.raises(psycopg.errors.UniqueViolation):
            session.execute("CREATE UNIQUE INDEX CONCURRENTLY by_user ON shard2.photos (user_id)")
        session.execute("DELETE FROM shard2.photos")


def finish(one: Fleet) -> None:
    done = one.here("migrate", "--accept", TWO)
    assert done.returncode == 0, done.stderr
    assert one.plan().changes() == []
    assert one.query("a", LEFT) == [(0,)]


@pytest.mark.parametrize("running", [True, False])
def test_an_invalid_index_is_dropped_and_built_again(fleet_8: Fleet, *, running: bool) -> None:
    fleet_8.migration(TWO, f"{HEAD}CREATE INDEX CONCURRENTLY by_user ON photos (user_id);")
    begun(fleet_8, 0, running=running)
    invalid(fleet_8)
    finish(fleet_8)
    assert fleet_8.query("a", VALID) == [(True,)]
    definition = "SELECT indisunique FROM pg_index WHERE indexrelid = 'shard2.by_user'::regclass"
    assert fleet_8.query("a", definition) == [(False,)]


def test_an_index_that_was_finished_before_the_kill_is_kept(fleet_8: Fleet) -> None:
    fleet_8.migration(
        TWO,
        f"{HEAD}CREATE INDEX CONCURRENTLY by_user ON photos (user_id);\n"
        "ALTER TABLE photos ADD COLUMN more int;",
    )
    begun(fleet_8, 0)
    fleet_8.execute("a", "CREATE INDEX by_user ON shard2.photos (user_id)")
    [(before,)] = fleet_8.query("a", "SELECT 'shard2.by_user'::regclass::oid")
    finish(fleet_8)
    assert fleet_8.query("a", "SELECT 'shard2.by_user'::regclass::oid") == [(before,)]
    assert fleet_8.query("a", "SELECT more FROM shard2.photos") == []


def test_statements_that_are_done_do_not_run_again(fleet_8: Fleet) -> None:
    fleet_8.migration(
        TWO,
        f"{HEAD}ALTER TABLE photos ADD COLUMN one int;\n"
        "SET lock_timeout TO '1h';\n"
        "ALTER TABLE photos ADD COLUMN two text DEFAULT current_setting('lock_timeout');",
    )
    begun(fleet_8, 2, running=False)
    fleet_8.execute("a", "ALTER TABLE shard2.photos ADD COLUMN one int")
    finish(fleet_8)
    fleet_8.execute("a", "INSERT INTO shard2.photos (user_id) VALUES (1)")
    assert len(fleet_8.query("a", "SELECT two FROM shard2.photos")) == 1


def test_an_index_that_was_dropped_before_the_kill_stays_dropped(fleet_8: Fleet) -> None:
    for node, shards in (("a", range(4)), ("b", range(4, 8))):
        for shard in shards:
            if shard != 2:
                fleet_8.execute(node, f"CREATE INDEX by_user ON shard{shard}.photos (user_id)")
    fleet_8.migration(TWO, f"{HEAD}DROP INDEX CONCURRENTLY by_user;")
    begun(fleet_8, 0)
    finish(fleet_8)


def test_an_index_of_another_session_is_not_taken_for_ours(fleet_8: Fleet) -> None:
    fleet_8.migration(TWO, f"{HEAD}CREATE INDEX CONCURRENTLY by_user ON photos (user_id);")
    fleet_8.execute("a", "CREATE INDEX by_user ON shard2.photos (user_id)")
    for _ in range(2):
        done = fleet_8.here("migrate")
        assert done.returncode == 3
        assert 'shard 2 on node a: relation "by_user" already exists' in done.stderr
    fleet_8.execute("a", "DROP INDEX shard2.by_user")
    finish(fleet_8)


def test_what_cannot_run_in_a_transaction_runs_without(fleet_8: Fleet) -> None:
    fleet_8.migration(
        TWO,
        f"{HEAD}VACUUM photos;\n"
        "DO $$ BEGIN INSERT INTO photos (user_id) VALUES (7); COMMIT; END $$;\n"
        "REINDEX TABLE CONCURRENTLY photos;\n",
    )
    finish(fleet_8)
    assert fleet_8.query("a", "SELECT user_id FROM shard2.photos") == [(7,)]


def test_another_version_of_the_file_begins_at_its_beginning(fleet_8: Fleet) -> None:
    fleet_8.migration(TWO, f"{HEAD}ALTER TABLE photos ADD COLUMN one int;\nSELECT 1/0;")
    assert fleet_8.here("migrate", "--jobs", "1").returncode == 3
    fleet_8.migration(TWO, f"{HEAD}ALTER TABLE photos ADD COLUMN IF NOT EXISTS one int;")
    finish(fleet_8)


def test_an_index_that_a_killed_command_still_builds_is_waited_for(fleet_8: Fleet) -> None:
    fleet_8.migration(TWO, f"{HEAD}CREATE INDEX CONCURRENTLY by_user ON photos (user_id);")
    begun(fleet_8, 0)
    with fleet_8.connect("a", autocommit=False) as old, fleet_8.connect("a") as watcher:
        old.execute("INSERT INTO shard2.photos (user_id) VALUES (1)")
        with fleet_8.connect("a") as builder:
            index = "CREATE INDEX CONCURRENTLY by_user ON shard2.photos (user_id)"
            worker = threading.Thread(target=builder.execute, args=[index])
            worker.start()
            built = "SELECT count(*) FROM pg_stat_progress_create_index WHERE index_relid > 0"
            wait_for(lambda: watcher.execute(built).fetchone() == (1,))
            done = fleet_8.here("migrate", "--lock-timeout", "100ms", "--attempts", "2")
            assert done.returncode == 3
            pid = builder.info.backend_pid
            assert f"session {pid} is still building index shard2.by_user" in done.stderr
            old.rollback()
            worker.join(timeout=60)
            assert not worker.is_alive()
    finish(fleet_8)
    assert fleet_8.query("a", VALID) == [(True,)]


def test_lock_wait_bounds_what_waits_concurrently(fleet_8: Fleet) -> None:
    fleet_8.migration(TWO, f"{HEAD}CREATE INDEX CONCURRENTLY by_user ON photos (user_id);")
    with fleet_8.connect("a", autocommit=False) as old:
        old.execute("INSERT INTO shard2.photos (user_id) VALUES (1)")
        done = fleet_8.here("migrate", "--lock-wait", "1500ms")
        assert done.returncode == 3
        assert "shard 2 on node a: canceling statement due to lock timeout" in done.stderr
        assert "INSERT INTO shard2.photos" in done.stderr
        old.rollback()
    finish(fleet_8)
    assert fleet_8.query("a", VALID) == [(True,)]
