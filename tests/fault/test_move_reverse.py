"""Streamed moves that are reversed beside clients, and whose servers or processes die.

Shards were streamed to a node that serves, or by a clone that handed over by stream.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from shardctl.moves.cutover import CUTOVERS
from shardctl.moves.methods import REVERSE
from tests.fixtures.moves import clone_streamed, streamed
from tests.fixtures.moves.clone_streamed import Follows
from tests.fixtures.moves.harm import kill, retry_soon
from tests.fixtures.moves.proof import prove
from tests.fixtures.moves.stopping import finish
from tests.fixtures.moves.stream_versions import SAME
from tests.fixtures.moves.writers import FENCE, SERVED_S, Clients
from tests.fixtures.servers.postgres import stop_all_below, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fixtures.moves.stopping import MovingFleet

pytestmark = pytest.mark.fault

STEPS = REVERSE.steps
SPANS = [*(one.name for one in CUTOVERS[REVERSE.fence].rows), "confirm"]
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
def back(fleet_followed: Follows) -> Iterator[Follows]:
    """Give a fleet whose streamed moves can be reversed, and their target."""
    keep_reverse(fleet_followed.fleet)
    yield fleet_followed
    finish(fleet_followed.fleet, "resume")


@pytest.fixture
def back_on_versions(fleet_versions: MovingFleet, server_directory: Path) -> Iterator[Follows]:
    """Give such a fleet on another version, whose shards were cloned to node c."""
    clone_streamed.use(fleet_versions)
    keep_reverse(fleet_versions)
    yield Follows(fleet_versions, clone_streamed.TARGET)
    finish(fleet_versions, "resume")
    stop_all_below(server_directory)


def keep_reverse(fleet: MovingFleet) -> None:
    fleet.choice = dataclasses.replace(fleet.choice, keep_reverse_s=3600.0)


def go_there(back: Follows) -> None:
    """Move the shards to the target."""
    fleet, target = back
    mover = fleet.mover("start")
    assert mover.end(seconds=120) == 0, mover.said
    assert fleet.owner == target
    assert fleet.state() == fleet.state(target) == "done"


def prove_back(back: Follows, clients: Clients) -> None:
    """See that the shards are where they were, and that nothing is left of both moves."""
    assert back.fleet.owner == "a"
    assert streamed.left(back.fleet) == []
    stays = back.target == clone_streamed.TARGET
    prove(back.fleet, clients, version=BACK, stays=stays)


def kill_at_every_point(back: Follows, left: set[str]) -> None:
    """Kill a reverse at each of some points, and go on with it until it ends."""
    fleet, target = back
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


def test_a_round_trip_beside_clients_loses_nothing(back: Follows) -> None:
    fleet, target = back
    with Clients(fleet, target=target) as clients:
        go_there(back)
        clients.wait_served()
        mover = fleet.mover("reverse")
        assert mover.end(seconds=120) == 0, mover.said
        clients.wait_served()
    assert clients.errors() == []
    assert fleet.state() == fleet.state(target) == "done"
    prove_back(back, clients)


def test_a_crash_of_the_node_that_has_the_shards_takes_nothing_from_their_way_back(
    back: Follows,
) -> None:
    """The slot is rewound by it; what came from the source is not applied there again."""
    fleet, target = back
    with Clients(fleet, target=target) as clients:
        go_there(back)
        clients.wait_served()
        retry_soon(fleet)
        kill(back.directory)
        back.start()
        clients.wait_served()
        mover = fleet.mover("reverse")
        assert mover.end(seconds=120) == 0, mover.said
        clients.wait_served()
    prove_back(back, clients)


@pytest.mark.parametrize("first", range(ROUNDS))
def test_a_reverse_killed_at_every_point_gets_to_its_end(back: Follows, first: int) -> None:
    kill_at_every_point(back, set(POINTS[first::ROUNDS]))


@pytest.mark.parametrize("fleet_versions", SAME, indirect=True)
@pytest.mark.parametrize("first", range(ROUNDS))
def test_a_reverse_of_a_clone_killed_at_every_point_gets_to_its_end(
    back_on_versions: Follows, first: int
) -> None:
    kill_at_every_point(back_on_versions, set(POINTS[first::ROUNDS]))


@pytest.mark.parametrize("point", [*(f"step {s.name} ran" for s in STEPS[:3]), "span decide begin"])
def test_a_reverse_is_aborted_wherever_it_can_be(back: Follows, point: str) -> None:
    fleet, target = back
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


def test_a_move_killed_while_it_keeps_what_a_reverse_needs_can_be_reversed(back: Follows) -> None:
    fleet, target = back
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
