"""Streamed moves that are reversed beside clients, and whose servers or processes die."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from shardctl.moves.methods import REVERSE
from shardctl.moves.stream_cutover import CUTOVER
from tests.fixtures.moves import streamed
from tests.fixtures.moves.proof import prove
from tests.fixtures.moves.stopping import finish
from tests.fixtures.moves.writers import FENCE, SERVED_S, Clients
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.moves.stopping import MovingFleet

pytestmark = pytest.mark.fault

STEPS = REVERSE.steps
SPANS = [*(one.name for one in CUTOVER.rows), "confirm"]
POINTS = [
    *(f"step {step.name} run" for step in STEPS),
    f"step {STEPS[-1].name} ran",
    *(f"span {name} begin" for name in SPANS),
]
KEEPING = ["step keep-reverse run", "step keep-reverse ran", "step retire run", "step retire ran"]
BACK = 3
"""The version of the map when shards have moved there and back."""
ROUNDS = 4
"""Reverses by which all points are reached."""


@pytest.fixture
def back(fleet_stream: MovingFleet) -> Iterator[MovingFleet]:
    """Give a fleet whose streamed moves can be reversed."""
    fleet_stream.choice = dataclasses.replace(fleet_stream.choice, keep_reverse_s=3600.0)
    yield fleet_stream
    finish(fleet_stream, "resume")


def go_there(back: MovingFleet) -> None:
    """Move the shards to the target."""
    fleet, target = back, streamed.TARGET
    mover = fleet.mover("start")
    assert mover.end(seconds=120) == 0, mover.said
    assert fleet.owner == target
    assert fleet.state() == fleet.state(target) == "done"


def prove_back(back: MovingFleet, clients: Clients) -> None:
    """See that the shards are where they were, and that nothing is left of both moves."""
    assert back.owner == "a"
    assert streamed.left(back) == []
    prove(back, clients, version=BACK)


@pytest.mark.parametrize("first", range(ROUNDS))
def test_a_reverse_killed_at_every_point_gets_to_its_end(back: MovingFleet, first: int) -> None:
    fleet, target = back, streamed.TARGET
    left = set(POINTS[first::ROUNDS])
    with Clients(fleet, target=target) as clients:
        go_there(back)
        moved = fleet.journal()
        assert moved is not None
        mover = fleet.mover("reverse", *left)
        while (point := mover.next()) is not None:
            mover.kill()
            left.remove(point)
            clients.wait_served()  # by guards: nobody resumes yet
            wait_for(lambda: not fleet.is_locked())
            newest = fleet.journal(target)
            assert newest is not None
            mover = fleet.mover("reverse" if newest.id == moved.id else "resume", *left)
        finish(fleet, "resume")
        clients.wait_served()
    assert left == set(), mover.said
    assert clients.errors() == []
    assert clients.gap() < SERVED_S + 5
    prove_back(back, clients)


@pytest.mark.parametrize("point", [f"step {STEPS[2].name} ran", "span decide begin"])
def test_a_reverse_is_aborted_wherever_it_can_be(back: MovingFleet, point: str) -> None:
    fleet, target = back, streamed.TARGET
    with Clients(fleet, target=target) as clients:
        go_there(back)
        mover = fleet.mover("reverse", point)
        mover.at(point)
        mover.kill()
        clients.wait_served()
        wait_for(lambda: not fleet.is_locked())
        aborted = fleet.mover("abort")
        assert aborted.end(seconds=120) == 0, aborted.said
        clients.wait_served()
    assert clients.errors() == []
    assert not clients.codes() & FENCE
    assert fleet.owner == target
    assert streamed.left(fleet) == []
    prove(fleet, clients)


def test_a_move_killed_while_it_keeps_what_a_reverse_needs_can_be_reversed(
    back: MovingFleet,
) -> None:
    fleet, target = back, streamed.TARGET
    left = set(KEEPING)
    with Clients(fleet, target=target) as clients:
        mover = fleet.mover("start", *left)
        while (point := mover.next()) is not None:
            mover.kill()
            left.remove(point)
            clients.wait_served()
            wait_for(lambda: not fleet.is_locked())
            mover = fleet.mover("resume", *left)
        assert left == set(), mover.said
        clients.wait_served()
        reverse = fleet.mover("reverse")
        assert reverse.end(seconds=120) == 0, reverse.said
        clients.wait_served()
    assert clients.errors() == []
    prove_back(back, clients)
