"""Several operators at one streamed move, of whom one has lost its locks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fixtures.moves import streamed
from tests.fixtures.moves.busy import Busy, prove_streamed
from tests.fixtures.moves.stopping import END_LOCKING, finish, patient

if TYPE_CHECKING:
    from tests.fixtures.moves.stopping import MovingFleet

pytestmark = pytest.mark.fault

UNDOABLE = ("span fence begin", "span decide begin")


def unlock(fleet: MovingFleet) -> None:
    """Take its locks from whoever is at work on the move."""
    for node in ("a", streamed.TARGET):
        fleet.ask(node, END_LOCKING)


@pytest.mark.parametrize(
    ("point", "verb"),
    [
        ("step copy ran", "abort"),
        ("span fence begin", "resume"),
        ("span decide begin", "abort"),
        ("span claim begin", "resume"),
        ("span route begin", "resume"),
    ],
)
def test_an_operator_who_lost_the_locks_to_another_does_nothing_more(
    fleet_stream: MovingFleet, point: str, verb: str
) -> None:
    fleet, target = fleet_stream, streamed.TARGET
    with Busy(fleet, target=target) as clients:
        mover = fleet.mover("start", point)
        mover.at(point)
        unlock(fleet)
        finish(fleet, verb)
        mover.go()
        ended_well = mover.end() == 0  # it may find that the move is done
        assert not (ended_well and (verb == "abort" or point in UNDOABLE)), mover.said
        clients.wait_served()
    assert clients.errors() == []
    assert fleet.owner == ("a" if verb == "abort" else target)
    prove_streamed(fleet, clients)


def test_nobody_aborts_what_another_has_decided_meanwhile(fleet_stream: MovingFleet) -> None:
    fleet, target = fleet_stream, streamed.TARGET
    patient(fleet)
    with Busy(fleet, target=target) as clients:
        mover = fleet.mover("start", "span decide begin", "span claim begin")
        mover.at("span decide begin")
        unlock(fleet)
        other = fleet.mover("abort", "undo cutover begin")
        other.at("undo cutover begin")
        mover.go()
        if mover.next() is not None:  # it decides before the abort undoes
            other.go()
            assert other.end() == 3, other.said
            assert any(line.startswith("NotAbortable") for line in other.said), other.said
            mover.go()
            mover.end()
        else:  # it saw that its locks were gone
            other.go()
            assert other.end() == 0, other.said
        finish(fleet, "resume")
        clients.wait_served()
    assert clients.errors() == []
    assert fleet.owner == ("a" if fleet.state() == "aborted" else target)
    prove_streamed(fleet, clients)
