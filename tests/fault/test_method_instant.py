"""A method that shardctl does not have goes through its runner, killed and resumed everywhere."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from shardctl.state.journal import MoveState
from tests.fixtures.moves import instant
from tests.fixtures.moves.proof import prove
from tests.fixtures.moves.stopping import finish
from tests.fixtures.moves.windows import BEGINS
from tests.fixtures.moves.writers import FENCE, Clients
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from tests.fixtures.moves.stopping import MovingFleet

pytestmark = pytest.mark.fault

POINTS = [
    *(f"step {step.name} run" for step in instant.ROW.steps),
    f"step {instant.ROW.steps[-1].name} ran",
    *(begin for begin in BEGINS if begin != "span open begin"),  # its claim opens the target
]
ROUNDS = 3
"""Moves by which all points are reached."""


@pytest.fixture
def fleet_instant(fleet_points: MovingFleet) -> MovingFleet:
    """Give a fleet whose moves go to node b, which runs and has shards of its own."""
    fleet_points.program = instant.__name__
    fleet_points.choice = dataclasses.replace(fleet_points.choice, max_pause_s=5.0)
    return fleet_points


def test_another_method_moves_shards_to_a_node_that_has_some(fleet_instant: MovingFleet) -> None:
    with Clients(fleet_instant) as clients:
        mover = fleet_instant.mover("start")
        assert mover.end() == 0, mover.said
        clients.wait_served()
    assert clients.errors() == []
    assert fleet_instant.owner == "b"
    assert fleet_instant.state() == fleet_instant.state("b") == MoveState.done
    prove(fleet_instant, clients)


@pytest.mark.parametrize("first", range(ROUNDS))
def test_another_method_killed_at_every_point_gets_to_its_end(
    fleet_instant: MovingFleet, first: int
) -> None:
    left = set(POINTS[first::ROUNDS])
    with Clients(fleet_instant) as clients:
        mover = fleet_instant.mover("start", *left)
        while (point := mover.next()) is not None:
            mover.kill()
            left.remove(point)
            wait_for(lambda: not fleet_instant.is_locked())
            verb = "start" if fleet_instant.state() == "none" else "resume"
            mover = fleet_instant.mover(verb, *left)
        finish(fleet_instant, "resume")
        clients.wait_served()
    assert left == set(), mover.said
    assert clients.codes() <= FENCE, clients.errors()
    assert fleet_instant.owner == "b"
    prove(fleet_instant, clients)


def test_another_method_is_aborted_wherever_it_can_be(fleet_instant: MovingFleet) -> None:
    with Clients(fleet_instant) as clients:
        for point in ("step hold ran", "span fence begin", "span replay end", "span decide begin"):
            mover = fleet_instant.mover("start", point)
            mover.at(point)
            mover.kill()
            finish(fleet_instant, "abort")
            assert fleet_instant.state() == "aborted"
            clients.wait_served()
    assert clients.errors() == []
    assert fleet_instant.owner == "a"
    prove(fleet_instant, clients)
