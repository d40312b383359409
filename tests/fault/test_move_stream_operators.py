"""Several operators at one streamed move: two go on with it at once, or one lost its locks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fixtures.moves import streamed
from tests.fixtures.moves.busy import Busy, prove_streamed
from tests.fixtures.moves.stopping import END_LOCKING, OVER, finish, patient
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from tests.fixtures.moves.stopping import MovingFleet

pytestmark = pytest.mark.fault

UNDOABLE = ("span pause begin", "span fence begin", "span drain begin", "span decide begin")
KILLED = ("step follow run", "span arrive begin", "span claim begin", "span route begin",
          "step confirm run", "step copy run")  # fmt: skip
"""Where a process is killed."""


def unlock(fleet: MovingFleet) -> None:
    """Take its locks from whoever is at work on the move."""
    for node in ("a", streamed.TARGET):
        fleet.ask(node, END_LOCKING)


@pytest.mark.parametrize(
    ("point", "verb"),
    [
        *((point, verb) for point in UNDOABLE for verb in ("resume", "abort")),
        ("step copy ran", "abort"),
        ("step follow ran", "resume"),
        ("span claim begin", "resume"),
        ("span route begin", "resume"),
        ("step confirm run", "resume"),
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


@pytest.mark.parametrize("verbs", [("resume", "resume"), ("abort", "resume")], ids=" and ".join)
@pytest.mark.parametrize("point", KILLED)
def test_two_operators_at_what_a_killed_process_has_left(
    fleet_stream: MovingFleet, point: str, verbs: tuple[str, str]
) -> None:
    """One of them gets the locks; the other is refused, or finds what the first has done."""
    fleet, target = fleet_stream, streamed.TARGET
    with Busy(fleet, target=target) as clients:
        mover = fleet.mover("start", point)
        mover.at(point)
        mover.kill()
        wait_for(lambda: not fleet.is_locked())
        codes = [one.end(seconds=120) for one in [fleet.mover(verb) for verb in verbs]]
        wait_for(lambda: not fleet.is_locked())
        assert 0 in codes or fleet.state() not in OVER, fleet.movers[-1].said
        finish(fleet, "resume")
        clients.wait_served()
    assert clients.errors() == []
    assert fleet.owner == ("a" if fleet.state() == "aborted" else target)
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
