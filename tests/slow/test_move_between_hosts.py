"""Moves between machines of their own, by an operator at another one, over SSH."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.fixtures.moves.on_machines import DATA
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


def test_a_move_is_refused_where_the_login_may_not_become_the_servers_user(
    fleet_machines: SpreadFleet,
) -> None:
    for name in ("c", "v"):
        with fleet_machines.network[name].sudo_refused():
            told = refused(fleet_machines)
        assert f"host {name}: deploy may not run commands as postgres" in told
        assert "deploy ALL=(postgres) NOPASSWD: ALL" in told


def test_a_move_is_refused_where_a_host_shows_another_key(fleet_machines: SpreadFleet) -> None:
    fleet_machines.network["c"].new_host_key()
    told = refused(fleet_machines)
    assert "host c cannot be reached by ssh: it presents the host key" in told
    assert "ssh-keygen -f" in told
    fleet_machines.network.know()


def test_a_move_is_refused_where_hosts_do_not_answer(fleet_machines: SpreadFleet) -> None:
    with fleet_machines.network["v"].unplugged(), fleet_machines.network["c"].unplugged():
        told = refused(fleet_machines)
    assert "pooler v" in told
    assert "host c cannot be reached by ssh" in told


def test_a_plan_sees_the_room_on_the_targets_disk(fleet_machines: SpreadFleet) -> None:
    with fleet_machines.network["c"].small_disk(DATA.parent, "8m"):
        told = fleet_machines.here("move-shards", *WANTED, "--dry-run", "-o", "json")
        assert told.returncode == 1, told.stderr
        assert any(str(DATA.parent) in e["message"] for e in json.loads(told.stdout)["errors"])
