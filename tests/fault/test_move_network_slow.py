"""Shards move between machines that are far from one another, or from the operator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fixtures.moves.proof import prove
from tests.fixtures.moves.stopping import finish
from tests.fixtures.moves.writers import Clients

if TYPE_CHECKING:
    import subprocess

    from tests.fixtures.moves.on_machines import SpreadFleet

pytestmark = pytest.mark.fault

ONE_WAY_MS = 50


def move(fleet: SpreadFleet, max_pause: str) -> subprocess.CompletedProcess[str]:
    """Move shards 2 and 3 to the empty machine, as an operator does."""
    given = ("2,3", "--to", "c", "--retain", "0s", "--duplicate-shared", "--yes")
    return fleet.here("move-shards", *given, "--max-pause", max_pause)


@pytest.mark.parametrize("name", ["v", "c"])
def test_a_machine_that_is_far_away(fleet_machines: SpreadFleet, name: str) -> None:
    with Clients(fleet_machines) as clients, fleet_machines.network[name].delayed(ONE_WAY_MS):
        mover = fleet_machines.mover("start")
        # Its pause may be too short for the distance; then nothing has happened.
        if mover.end() != 0:
            finish(fleet_machines, "resume")
        clients.wait_served()
    assert clients.errors() == []
    assert fleet_machines.owner == "c"
    prove(fleet_machines, clients)
