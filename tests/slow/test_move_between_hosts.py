"""Moves between machines of their own, by an operator at another one, over SSH."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.fixtures.machines import DISK, OPERATOR
from tests.fixtures.proving import prove
from tests.fixtures.spread import DATA
from tests.fixtures.writing import Clients

if TYPE_CHECKING:
    import subprocess

    from tests.fixtures.spread import SpreadFleet

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


def test_a_whole_move_under_traffic(spread: SpreadFleet) -> None:
    with Clients(spread) as clients:
        done = move(spread)
        assert done.returncode == 0, done.stderr
        clients.wait_served()
    assert clients.errors() == []
    assert spread.owner == "c"
    prove(spread, clients)
    pruned = spread.here("prune", "--yes")
    assert pruned.returncode == 0, pruned.stderr
    left = [f for f in spread.verify() if f.severity != "note" and f.check != "settings"]
    assert left == []
    assert spread.machine.run("ls", DISK, user=OPERATOR) == "home\n", "nothing was made here"


def test_a_move_is_refused_where_the_login_may_not_become_the_servers_user(
    spread: SpreadFleet,
) -> None:
    for name in ("c", "v"):
        with spread.network[name].sudo_refused():
            told = refused(spread)
        assert f"host {name}: deploy may not run commands as postgres" in told
        assert "deploy ALL=(postgres) NOPASSWD: ALL" in told


def test_a_move_is_refused_where_a_host_shows_another_key(spread: SpreadFleet) -> None:
    spread.network["c"].new_host_key()
    told = refused(spread)
    assert "host c cannot be reached by ssh: it shows the key" in told
    assert "ssh-keygen -f" in told
    spread.network.know()


def test_a_move_is_refused_where_hosts_do_not_answer(spread: SpreadFleet) -> None:
    with spread.network["v"].unplugged(), spread.network["c"].unplugged():
        told = refused(spread)
    assert "pooler v" in told
    assert "host c cannot be reached by ssh" in told


def test_a_plan_sees_the_room_on_the_targets_disk(spread: SpreadFleet) -> None:
    with spread.network["c"].small_disk(DATA.parent, "8m"):
        told = spread.here("move-shards", *WANTED, "--dry-run", "-o", "json")
        assert told.returncode == 1, told.stderr
        assert any(str(DATA.parent) in e["message"] for e in json.loads(told.stdout)["errors"])
