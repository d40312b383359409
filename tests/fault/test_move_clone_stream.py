"""A clone that hands over by stream, whose process is killed before every step and sub-step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardctl.state.journal import MoveState
from tests.fixtures.moves import clone_streamed, streamed
from tests.fixtures.moves.proof import prove
from tests.fixtures.moves.stopping import finish
from tests.fixtures.moves.writers import FENCE, SERVED_S, Clients
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from tests.fixtures.moves.stopping import MovingFleet

pytestmark = pytest.mark.fault


def test_a_clone_that_hands_over_by_stream_loses_nothing(fleet_clone_stream: MovingFleet) -> None:
    fleet = fleet_clone_stream
    with Clients(fleet, target="c") as clients:
        mover = fleet.mover("start")
        assert mover.end() == 0, mover.said
        clients.wait_served()
    assert clients.errors() == []
    assert fleet.owner == clone_streamed.TARGET
    assert fleet.state() == fleet.state("c") == MoveState.done
    assert streamed.left(fleet) == []
    move = fleet.journal("c")
    assert move is not None
    assert move.streams
    assert move.method == "clone"
    assert move.proof == "compared"
    assert "promote" not in {name for name, _ in (move.report or {})["timeline"]}
    prove(fleet, clients)


@pytest.mark.parametrize("first", range(clone_streamed.ROUNDS))
def test_a_move_killed_at_every_point_gets_to_its_end(
    fleet_clone_stream: MovingFleet, first: int
) -> None:
    fleet = fleet_clone_stream
    left = set(clone_streamed.POINTS[first :: clone_streamed.ROUNDS])
    with Clients(fleet, target="c") as clients:
        mover = fleet.mover("start", *left)
        while (point := mover.next()) is not None:
            mover.kill()
            left.remove(point)
            clients.wait_served()  # by guards: nobody resumes yet
            wait_for(lambda: not fleet.is_locked())
            verb = "start" if fleet.state() == "none" else "resume"
            mover = fleet.mover(verb, *left)
        finish(fleet, "resume")
        clients.wait_served()
    assert left == set(), mover.said
    assert clients.errors() == []
    assert clients.gap() < streamed.SERVED_S + 5
    assert fleet.owner == clone_streamed.TARGET
    assert streamed.left(fleet) == []
    prove(fleet, clients)


@pytest.mark.parametrize(
    "point",
    [*(f"step {name} ran" for name in clone_streamed.UNDOABLE), "span decide begin"],
)
def test_a_move_is_aborted_wherever_it_can_be(fleet_clone_stream: MovingFleet, point: str) -> None:
    fleet = fleet_clone_stream
    with Clients(fleet, target="c") as clients:
        mover = fleet.mover("start", point)
        mover.at(point)
        mover.kill()
        clients.wait_served()
        finish(fleet, "abort")
        assert fleet.state() == "aborted"
        clients.wait_served()
    assert clients.errors() == []
    assert fleet.owner == "a"
    assert not fleet.place.exists()
    assert streamed.left(fleet) == []
    prove(fleet, clients)


def test_a_process_killed_between_decision_and_claim_costs_no_error(
    fleet_clone_stream: MovingFleet,
) -> None:
    """The guard on the pooler's host claims, and routes: there is no window."""
    fleet = fleet_clone_stream
    with Clients(fleet, target="c") as clients:
        mover = fleet.mover("start", "span claim begin")
        mover.at("span claim begin")
        mover.kill()
        assert fleet.state() == "promoting"
        clients.wait_served()
        wait_for(lambda: fleet.state("c") == "claimed", seconds=SERVED_S)
        clients.wait_served()
        assert clients.errors() == []
        assert clients.gap() < SERVED_S + 5
        finish(fleet, "resume")
    assert clients.errors() == []
    assert not clients.codes() & FENCE
    assert fleet.owner == clone_streamed.TARGET
    prove(fleet, clients)
