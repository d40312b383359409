"""The rehearsal of a streamed move, killed and stopped wherever it does something to a server."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.fault.conftest import EVERY_POINT
from tests.fixtures.moves import streamed
from tests.fixtures.moves.proof import prove
from tests.fixtures.moves.stopping import finish
from tests.fixtures.moves.writers import Clients
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from tests.fixtures.moves.stopping import MovingFleet

pytestmark = pytest.mark.fault

EFFECTS = 60
"""About how often the step asks a server for something, with three tables."""
STEP = 1 if os.environ.get(EVERY_POINT) else 4
ROUNDS = 2
LOCKED_S = 5
"""In which time a server has ended every lock of a process that is stopped, however busy it is."""
LOCKS = (
    "SELECT pid FROM pg_locks WHERE granted AND mode IN ('ShareLock', 'ShareRowExclusiveLock')"
    " AND locktype = 'relation'"
)


def points(first: int) -> list[str]:
    """Name places before all that the step does."""
    numbers = range(1 + first * STEP, EFFECTS, ROUNDS * STEP)
    return [f"step rehearse run +{number}" for number in numbers]


def unlocked(fleet: MovingFleet) -> None:
    """See that nobody waits for the process that is at work."""
    wait_for(lambda: fleet.ask("a", LOCKS) == fleet.ask("b", LOCKS) == [], seconds=LOCKED_S)


@pytest.mark.parametrize("first", range(ROUNDS))
def test_a_rehearsal_killed_anywhere_holds_nobody_and_goes_on(
    fleet_stream: MovingFleet, first: int
) -> None:
    wanted = set(points(first))
    reached = set()
    with Clients(fleet_stream, target="b") as clients:
        mover = fleet_stream.mover("start", *wanted)
        while (point := mover.next()) is not None:
            mover.kill()
            unlocked(fleet_stream)
            clients.wait_served()
            reached.add(point)
            wait_for(lambda: not fleet_stream.is_locked())
            mover = fleet_stream.mover("resume", *wanted - reached)
        finish(fleet_stream, "resume")
        clients.wait_served()
    assert len(reached) > len(wanted) / 2, mover.said
    assert clients.errors() == []
    assert fleet_stream.owner == streamed.TARGET
    assert streamed.left(fleet_stream) == []
    prove(fleet_stream, clients)


@pytest.mark.parametrize("first", range(ROUNDS))
def test_a_rehearsal_that_stops_anywhere_holds_nobody(
    fleet_stream: MovingFleet, first: int
) -> None:
    """A process that waits at a point does as little as one that got SIGSTOP."""
    wanted = set(points(first))
    reached = set()
    with Clients(fleet_stream, target="b") as clients:
        mover = fleet_stream.mover("start", *wanted)
        while True:
            while (point := mover.next()) is not None:
                reached.add(point)
                unlocked(fleet_stream)
                clients.wait_served()
                mover.go()
            if mover.end() == 0:
                break
            # A server has ended a session that held a lock.
            assert any(line.startswith("NodeLost") for line in mover.said), mover.said
            mover = fleet_stream.mover("resume", *wanted - reached)
        clients.wait_served()
    assert len(reached) > len(wanted) / 2, mover.said
    assert clients.errors() == []
    assert fleet_stream.owner == streamed.TARGET
    assert streamed.left(fleet_stream) == []
    prove(fleet_stream, clients)


def test_a_move_killed_behind_its_rehearsal_is_aborted(fleet_stream: MovingFleet) -> None:
    with Clients(fleet_stream, target="b") as clients:
        mover = fleet_stream.mover("start", "step rehearse ran")
        mover.at("step rehearse ran")
        mover.kill()
        finish(fleet_stream, "abort")
        clients.wait_served()
    assert clients.errors() == []
    assert fleet_stream.owner == "a"
    assert streamed.left(fleet_stream) == []
    prove(fleet_stream, clients)
