"""Shards move between machines that are far from one another, or from the operator."""

from __future__ import annotations

import json
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
FAR_MS = 16 * 2 * ONE_WAY_MS
"""What the ways of all questions of a pause take, where all are far from the operator."""


def move(fleet: SpreadFleet, max_pause: str) -> subprocess.CompletedProcess[str]:
    """Move shards 2 and 3 to the empty machine, as an operator does."""
    given = ("2,3", "--to", "c", "--retain", "0s", "--duplicate-shared", "--yes")
    return fleet.here("move-shards", *given, "--max-pause", max_pause)


@pytest.mark.parametrize("name", ["v", "c", "a"])
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


def test_an_operator_who_is_far_away(fleet_machines: SpreadFleet) -> None:
    with Clients(fleet_machines) as clients, fleet_machines.machine.delayed(ONE_WAY_MS):
        late = move(fleet_machines, "1s")
        assert late.returncode == 3, late.stderr
        assert fleet_machines.state() == "undone"
        clients.wait_served()
        done = fleet_machines.here("moves", "resume", "--yes", "--max-pause", "6s")
        assert done.returncode == 0, done.stderr
        clients.wait_served()
    assert clients.errors() == []
    assert fleet_machines.owner == "c"
    report = json.loads(fleet_machines.here("moves", "show", "-o", "json").stdout)["report"]
    assert FAR_MS < report["predicted_pause_ms"] < 1.5 * FAR_MS
    assert report["pause_ms"] > 0.9 * FAR_MS, "it asks less than is predicted"
    prove(fleet_machines, clients)


def test_an_operator_who_went_far_away_before_the_cutover(fleet_machines: SpreadFleet) -> None:
    with Clients(fleet_machines) as clients:
        mover = fleet_machines.mover("start", "step cutover run")
        mover.at("step cutover run")
        with fleet_machines.machine.delayed(ONE_WAY_MS):
            mover.go()
            assert mover.end() == 3, mover.said
            assert any(line.startswith("BudgetSpent: ") for line in mover.said), mover.said
            assert fleet_machines.guards() == []
            done = fleet_machines.here("moves", "resume", "--max-pause", "6s")
            assert done.returncode == 0, done.stderr
        clients.wait_served()
    assert clients.errors() == []
    assert fleet_machines.owner == "c"
    prove(fleet_machines, clients)
