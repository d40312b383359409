"""Moves between machines of their own, by an operator at another one, over SSH."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.fixtures.moves.proof import prove
from tests.fixtures.moves.writers import Clients
from tests.fixtures.network.machines import DISK, OPERATOR

if TYPE_CHECKING:
    import subprocess

    from tests.fixtures.moves.on_machines import SpreadFleet

WANTED = ("2,3", "--to", "c", "--max-pause", "2s", "--retain", "0s", "--duplicate-shared")
"""What is moved; the copy that all tests' databases are made from is moved, too."""


def move(fleet: SpreadFleet, *more: str) -> subprocess.CompletedProcess[str]:
    """Move shards 2 and 3 to the empty machine, as an operator does."""
    return fleet.here("move-shards", *WANTED, "--yes", *more)


def refused(fleet: SpreadFleet) -> str:
    """Move in vain, see that nothing has changed, and give what was told."""
    done = move(fleet)
    assert done.returncode == 1, done.stderr
    assert fleet.state() == "none"
    assert not fleet.place.exists()
    assert fleet.guards() == []
    return done.stderr


def test_a_whole_move_under_traffic(fleet_machines: SpreadFleet) -> None:
    with Clients(fleet_machines) as clients:
        done = move(fleet_machines)
        assert done.returncode == 0, done.stderr
        clients.wait_served()
    assert clients.errors() == []
    assert fleet_machines.owner == "c"
    prove(fleet_machines, clients)
    pruned = fleet_machines.here("prune", "--yes")
    assert pruned.returncode == 0, pruned.stderr
    found = fleet_machines.verify()
    assert [f for f in found if f.severity != "note" and f.check != "settings"] == []
    assert fleet_machines.machine.run("ls", DISK, user=OPERATOR) == "home\n", (
        "nothing was made here"
    )
