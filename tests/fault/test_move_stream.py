"""A streamed move whose process is killed before and after every step and sub-step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardctl.moves import plan, reverse_kept
from shardctl.moves.methods import METHODS
from shardctl.state.journal import MoveState
from tests.fixtures.moves import streamed
from tests.fixtures.moves.proof import prove
from tests.fixtures.moves.stopping import finish
from tests.fixtures.moves.writers import FENCE, SERVED_S, Clients
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from tests.fixtures.moves.stopping import MovingFleet

pytestmark = pytest.mark.fault

STEPS = [step for step in METHODS[plan.STREAM].steps if step is not reverse_kept.STEP]
"""Those of a move that keeps nothing for a reverse: see `test_move_reverse.py`."""


def test_a_streamed_move_beside_clients_loses_nothing(fleet_stream: MovingFleet) -> None:
    with Clients(fleet_stream, target="b") as clients:
        mover = fleet_stream.mover("start")
        assert mover.end() == 0, mover.said
        clients.wait_served()
    assert clients.errors() == []
    assert fleet_stream.owner == streamed.TARGET
    assert fleet_stream.state() == fleet_stream.state("b") == MoveState.done
    assert streamed.left(fleet_stream) == []
    prove(fleet_stream, clients)


@pytest.mark.parametrize("first", range(streamed.ROUNDS))
def test_a_streamed_move_killed_at_every_point_gets_to_its_end(
    fleet_stream: MovingFleet, first: int
) -> None:
    left = set(streamed.POINTS[first :: streamed.ROUNDS])
    with Clients(fleet_stream, target="b") as clients:
        mover = fleet_stream.mover("start", *left)
        while (point := mover.next()) is not None:
            mover.kill()
            left.remove(point)
            clients.wait_served()  # by guards: nobody resumes yet
            wait_for(lambda: not fleet_stream.is_locked())
            verb = "start" if fleet_stream.state() == "none" else "resume"
            mover = fleet_stream.mover(verb, *left)
        finish(fleet_stream, "resume")
        clients.wait_served()
    assert left == set(), mover.said
    assert clients.errors() == []
    assert clients.gap() < SERVED_S + 5
    assert fleet_stream.owner == streamed.TARGET
    assert streamed.left(fleet_stream) == []
    prove(fleet_stream, clients)


@pytest.mark.parametrize(
    "point", [streamed.ROWS, streamed.REST, f"step {STEPS[2].name} ran", "span decide begin"]
)
def test_a_streamed_move_is_aborted_wherever_it_can_be(
    fleet_stream: MovingFleet, point: str
) -> None:
    with Clients(fleet_stream, target="b") as clients:
        mover = fleet_stream.mover("start", point)
        mover.at(point)
        mover.kill()
        clients.wait_served()
        finish(fleet_stream, "abort")
        assert fleet_stream.state() == fleet_stream.state("b") == "aborted"
        clients.wait_served()
    assert clients.errors() == []
    assert fleet_stream.owner == "a"
    assert streamed.left(fleet_stream) == []
    prove(fleet_stream, clients)


def test_a_process_killed_between_decision_and_claim_costs_no_error(
    fleet_stream: MovingFleet,
) -> None:
    """The guard on the pooler's host claims, and routes."""
    with Clients(fleet_stream, target="b") as clients:
        mover = fleet_stream.mover("start", "span claim begin")
        mover.at("span claim begin")
        mover.kill()
        assert fleet_stream.state() == "promoting"
        clients.wait_served()
        wait_for(lambda: fleet_stream.state("b") == "claimed", seconds=SERVED_S)
        clients.wait_served()
        assert clients.errors() == []
        assert clients.gap() < SERVED_S + 5
        finish(fleet_stream, "resume")
    assert clients.errors() == []
    assert not clients.codes() & FENCE
    assert fleet_stream.owner == streamed.TARGET
    prove(fleet_stream, clients)
