"""A repack whose shardctl is killed: `verify` names what is left, and it can be repeated.

With an old transaction open, pg_repack stops where everything of its own is there: the trigger,
the log, the copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.fixtures.fleets.verify import told, verify
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from tests.fixtures.fleets.bloated import Repacking


def test_shardctl_killed_leaves_what_verify_finds(fleet_bloated: Repacking) -> None:
    fleet_bloated.bloat(0)
    with fleet_bloated.reader() as old:
        old.execute("SELECT 1")
        with fleet_bloated.start("0") as command:
            fleet_bloated.copied()
            assert verify(fleet_bloated.fleet, "leftovers") == [], "it is at work"
            command.kill()
        # Its output has no reader any more, so it ends when it prints next.
        wait_for(lambda: fleet_bloated.programs() == [])
        wait_for(lambda: fleet_bloated.at_work() == 0)
        fleet_bloated.execute(0, "INSERT INTO shard0.photos VALUES (1000001, 1, 'new')")
        fleet_bloated.execute(0, "DELETE FROM shard0.photos WHERE id = 8")
        old.rollback()
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
    assert verify(fleet_bloated.fleet, "leftovers") == []
