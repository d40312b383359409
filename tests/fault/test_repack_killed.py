"""A repack killed at several points: no row is lost, nobody is held up, and it can be repeated.

With an old transaction open, pg_repack stops where everything of its own is there: the trigger,
the log, the copy. A function that waits, in an index, stops it in the middle of a statement.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.fleets.verify import told, verify
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from tests.fixtures.fleets.bloated import Repacking

pytestmark = pytest.mark.fault

_WAITS = """
CREATE FUNCTION shard0.waits(bigint) RETURNS bigint IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(4711);
    RETURN $1;
END $$;
CREATE INDEX waiting ON shard0.photos (shard0.waits(id));
"""
_WRITE = (
    "INSERT INTO shard0.photos VALUES (1000001, 1, 'new')",
    "UPDATE shard0.photos SET about = 'changed' WHERE id = 4",
    "DELETE FROM shard0.photos WHERE id = 8",
)


def test_shardctl_killed_leaves_what_verify_finds(fleet_bloated: Repacking) -> None:
    fleet_bloated.bloat(0)
    with fleet_bloated.reader() as old:
        old.execute("SELECT 1")
        with fleet_bloated.start("0") as command:
            fleet_bloated.copied()
            assert verify(fleet_bloated.fleet, "leftovers") == [], "it is at work"
            command.kill()
        # Nobody reads what it says any more, so it ends at its next word.
        wait_for(lambda: fleet_bloated.programs() == [])
        wait_for(lambda: fleet_bloated.at_work() == 0)
        for statement in _WRITE:
            fleet_bloated.execute(0, statement)
        old.rollback()
    assert "repack_trigger" in fleet_bloated.leftovers()
    (finding,) = verify(fleet_bloated.fleet, "leftovers")
    assert told([finding]) == [("leftovers", "repack_left", "a", (0,), "shard0.photos")]
    # Drop what is left as the how-to says, and repeat the command: nothing is lost.
    assert fleet_bloated.verdicts(0)["shard0.photos"].startswith("a killed pg_repack left")
    for statement in ("DROP EXTENSION pg_repack CASCADE", "CREATE EXTENSION pg_repack"):
        fleet_bloated.execute(0, statement)
    rows, file = fleet_bloated.rows(0), fleet_bloated.file(0)
    done = fleet_bloated.repack("0", "--yes")
    assert done.returncode == 0, done.stderr
    assert (fleet_bloated.rows(0), fleet_bloated.file(0) != file) == (rows, True)
    assert fleet_bloated.leftovers() == []
    assert verify(fleet_bloated.fleet, "leftovers") == []


def test_killed_in_the_middle_of_a_statement_its_session_ends_soon(
    fleet_bloated: Repacking,
) -> None:
    fleet_bloated.bloat(0, rows=400)
    fleet_bloated.execute(0, _WAITS)
    try:
        with fleet_bloated.fleet.connect("a") as holder:
            holder.execute("SELECT pg_advisory_lock(4711)")
            with fleet_bloated.start("0", "--min-bloat", "0") as command:
                query = "SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
                wait_for(lambda: fleet_bloated.query(0, query))
                (pid,) = fleet_bloated.programs()
                os.kill(pid, signal.SIGKILL)
                _, errors = command.communicate(timeout=60)
            # While the index waits for the lock, nothing else would tell it that nobody is there.
            wait_for(lambda: fleet_bloated.at_work() == 0)
        assert "shard0.photos: pg_repack ended with code -9" in errors
    finally:
        fleet_bloated.execute(0, "DROP FUNCTION shard0.waits CASCADE")
