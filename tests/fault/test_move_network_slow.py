"""Shards move between machines that are far from one another, or from the operator."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.moving import finish
from tests.fixtures.proving import prove
from tests.fixtures.writing import Clients

if TYPE_CHECKING:
    import subprocess

    from tests.fixtures.spread import SpreadFleet

pytestmark = pytest.mark.fault

ONE_WAY_MS = 50
FAR_MS = 16 * 2 * ONE_WAY_MS
"""What the ways of all questions of a pause take, where all are far from the operator."""


def move(fleet: SpreadFleet, max_pause: str) -> subprocess.CompletedProcess[str]:
    """Move shards 2 and 3 to the empty machine, as an operator does."""
    given = ("2,3", "--to", "c", "--retain", "0s", "--duplicate-shared", "--yes")
    return fleet.here("move-shards", *given, "--max-pause", max_pause)


def named(told: str) -> str:
    """Give the budget that a refusal names."""
    found = re.search(r"such as --max-pause (\d+s)", told)
    assert found is not None, told
    return found[1]


@pytest.mark.parametrize("name", ["v", "c", "a"])
def test_a_machine_that_is_far_away(spread: SpreadFleet, name: str) -> None:
    with Clients(spread) as clients, spread.network[name].delayed(ONE_WAY_MS):
        mover = spread.mover("start")
        # Its pause may be too short for the distance; then nothing has happened.
        if mover.end() != 0:
            finish(spread, "resume")
        clients.wait_served()
    assert clients.errors() == []
    assert spread.owner == "c"
    prove(spread, clients)


def test_an_operator_who_is_far_away(spread: SpreadFleet) -> None:
    with Clients(spread) as clients, spread.machine.delayed(ONE_WAY_MS):
        refused = move(spread, "2s")
        assert refused.returncode == 1, refused.stderr
        assert spread.state() == "none"
        done = move(spread, named(refused.stderr))
        assert done.returncode == 0, done.stderr
        clients.wait_served()
    assert clients.errors() == []
    assert spread.owner == "c"
    report = json.loads(spread.here("moves", "show", "-o", "json").stdout)["report"]
    assert FAR_MS < report["predicted_pause_ms"] < 1.5 * FAR_MS
    assert report["pause_ms"] > 0.9 * FAR_MS, "it asks less than is predicted"
    prove(spread, clients)


def test_an_operator_who_went_far_away_before_the_cutover(spread: SpreadFleet) -> None:
    with Clients(spread) as clients:
        mover = spread.mover("start", "step cutover run")
        mover.at("step cutover run")
        with spread.machine.delayed(ONE_WAY_MS):
            mover.go()
            assert mover.end() == 3, mover.said
            assert any(line.startswith("PauseTooShort: ") for line in mover.said), mover.said
            assert spread.guards() == []
            done = spread.here("moves", "resume", "--max-pause", "6s")
            assert done.returncode == 0, done.stderr
        clients.wait_served()
    assert clients.errors() == []
    assert spread.owner == "c"
    prove(spread, clients)
