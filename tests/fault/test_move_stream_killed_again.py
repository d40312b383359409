"""A streamed move, or its abort, killed again and again before what it does to the servers."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from shardctl.moves import plan
from shardctl.moves.cutover import STREAM
from tests.fixtures.moves import points, streamed
from tests.fixtures.moves.again import killed_again_and_again
from tests.fixtures.moves.busy import Busy, prove_streamed
from tests.fixtures.moves.stopping import patient
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from tests.fixtures.moves.stopping import MovingFleet

pytestmark = pytest.mark.fault

MOVE_APART, ABORT_APART = 36, 12
"""How many effects later each process is killed than the one before it."""
EVERY = 3
"""Of how many effects one is killed before, in all moves or aborts together."""
SERVING = [
    *points.of_steps(plan.STREAM),
    *(f"span {one.name} begin" for one in STREAM.ready),
    "span arm guards begin",
    "span ping begin",
    "span logins begin",
    "span serve begin",
    "span stream begin",
    "span map begin",
    "span file begin",
    "span disarm begin",
    "span confirm begin",
]
"""Points at which no alias is paused."""


@pytest.mark.parametrize("first", range(1, MOVE_APART, EVERY))
def test_a_streamed_move_killed_before_any_effect_gets_to_its_end(
    fleet_stream: MovingFleet, first: int
) -> None:
    with Busy(fleet_stream) as clients:
        assert killed_again_and_again(fleet_stream, clients, "resume", first, MOVE_APART) > 3
        clients.wait_served()
    assert clients.errors() == []
    assert fleet_stream.owner == streamed.TARGET
    prove_streamed(fleet_stream, clients)


@pytest.mark.parametrize("point", ["span decide begin", streamed.REST])
@pytest.mark.parametrize("first", range(1, ABORT_APART, EVERY))
def test_an_abort_killed_before_any_effect_gets_to_its_end(
    fleet_stream: MovingFleet, first: int, point: str
) -> None:
    with Busy(fleet_stream) as clients:
        mover = fleet_stream.mover("start", point)
        mover.at(point)
        mover.kill()
        wait_for(lambda: not fleet_stream.is_locked())
        assert killed_again_and_again(fleet_stream, clients, "abort", first, ABORT_APART) > 1
        clients.wait_served()
    assert clients.errors() == []
    assert fleet_stream.owner == "a"
    prove_streamed(fleet_stream, clients)


def test_a_process_that_stops_where_nobody_waits_goes_on_afterwards(
    fleet_stream: MovingFleet,
) -> None:
    patient(fleet_stream)
    with Busy(fleet_stream) as clients:
        mover = fleet_stream.mover("start", *SERVING)
        for _ in SERVING:
            mover.at()
            mover.signal(signal.SIGSTOP)
            clients.wait_served()
            mover.go()
            mover.signal(signal.SIGCONT)
        assert mover.end() == 0, mover.said
    assert clients.errors() == []
    assert fleet_stream.owner == streamed.TARGET
    prove_streamed(fleet_stream, clients)
