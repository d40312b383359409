"""Moves of every kind, killed before every step and sub-step, and calls to take them back."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from shardctl.moves.plan import CLONE, STREAM
from tests.fixtures.moves import streamed
from tests.fixtures.moves.proof import prove
from tests.fixtures.moves.stopping import finish
from tests.fixtures.moves.writers import FENCE, SERVED_S, Clients
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.moves.stopping import MovingFleet

pytestmark = pytest.mark.fault

REVERSE = "reverse"
ROUNDS = 4
"""Streams by which all points are reached; of a clone, one kill passes over some of the next."""
BACK = 3
"""The version of the map when shards have moved there and back."""


@pytest.fixture
def fleet_any(fleet_points: MovingFleet) -> Iterator[MovingFleet]:
    """Give a fleet whose moves may be of any kind."""
    yield fleet_points
    streamed.end(fleet_points)


def there(fleet: MovingFleet, kind: str) -> str:
    """Let moves be of a kind, begin with what it needs, and give the target."""
    if kind == CLONE:
        return "c"
    streamed.use(fleet)
    if kind == REVERSE:
        fleet.choice = dataclasses.replace(fleet.choice, keep_reverse_s=3600.0)
    return streamed.TARGET


def newest(fleet: MovingFleet, kind: str) -> str | None:
    """Name the newest move that its source knows of."""
    move = fleet.journal(streamed.TARGET if kind == REVERSE else "a")
    return move.id if move else None


def move_there(fleet: MovingFleet) -> None:
    """Move the shards, such that they can come back."""
    mover = fleet.mover("start")
    assert mover.end(seconds=120) == 0, mover.said


@pytest.mark.parametrize(
    ("kind", "first"),
    [(CLONE, 0), *((kind, n) for kind in (STREAM, REVERSE) for n in range(ROUNDS))],
)
def test_a_move_killed_at_every_point_gets_to_its_end(
    fleet_any: MovingFleet, kind: str, first: int
) -> None:
    fleet, target = fleet_any, there(fleet_any, kind)
    every = streamed.every(kind)
    left = set(every[first :: 3 if kind == CLONE else ROUNDS])
    verb = REVERSE if kind == REVERSE else "start"
    with Clients(fleet, target=target) as clients:
        if kind == REVERSE:
            move_there(fleet)
        before = newest(fleet, kind)
        mover = fleet.mover(verb, *left)
        while (point := mover.next()) is not None:
            mover.kill()
            left.remove(point)
            if kind != CLONE:
                clients.wait_served()  # by guards: nobody resumes yet
            wait_for(lambda: not fleet.is_locked())
            begun = newest(fleet, kind) != before
            mover = fleet.mover("resume" if begun else verb, *left)
        finish(fleet, "resume")
        clients.wait_served()
    assert clients.codes() <= (FENCE if kind == CLONE else set()), clients.errors()
    if kind == CLONE:
        assert len(left) < len(every) / 6, left
    else:
        assert left == set(), mover.said
        assert clients.gap() < SERVED_S + 5
        assert streamed.left(fleet) == []
    assert fleet.owner == ("a" if kind == REVERSE else target)
    prove(fleet, clients, version=BACK if kind == REVERSE else None)


@pytest.mark.parametrize(
    ("kind", "point"),
    [
        (CLONE, "span replay begin"),
        (STREAM, streamed.ROWS),
        (STREAM, streamed.REST),
        (STREAM, "span decide begin"),
        (REVERSE, "span decide begin"),
    ],
)
def test_a_move_is_aborted_wherever_it_can_be(
    fleet_any: MovingFleet, kind: str, point: str
) -> None:
    fleet, target = fleet_any, there(fleet_any, kind)
    with Clients(fleet, target=target) as clients:
        if kind == REVERSE:
            move_there(fleet)
        mover = fleet.mover(REVERSE if kind == REVERSE else "start", point)
        mover.at(point)
        mover.kill()
        clients.wait_served()
        wait_for(lambda: not fleet.is_locked())
        aborted = fleet.mover("abort")
        assert aborted.end(seconds=120) == 0, aborted.said
        clients.wait_served()
    assert clients.errors() == []
    assert fleet.owner == (target if kind == REVERSE else "a")
    assert kind == CLONE or streamed.left(fleet) == []
    prove(fleet, clients)
