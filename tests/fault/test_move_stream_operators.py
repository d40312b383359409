"""Several operators at one streamed move: two go on with it at once, or one lost its locks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fixtures.moves import clone_streamed, streamed
from tests.fixtures.moves.busy import Busy, prove_streamed
from tests.fixtures.moves.stopping import END_LOCKING, OVER, finish, patient
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from _pytest.mark.structures import ParameterSet

    from tests.fixtures.moves.clone_streamed import Follows

pytestmark = pytest.mark.fault

STREAM, CLONE = streamed.TARGET, clone_streamed.TARGET
UNDOABLE = ("span pause begin", "span fence begin", "span drain begin", "span decide begin")
LOSING = {
    STREAM: [("step copy ran", "abort"), ("step follow ran", "resume")],
    CLONE: [
        ("step clone ran", "abort"),
        ("step clone ran", "resume"),
        ("step promote run", "abort"),
        ("step promote ran", "abort"),
        ("step follow ran", "resume"),
        ("step open run", "abort"),
        ("step open ran", "resume"),
    ],
}
"""Where a process loses its locks, and what another one does then, by the move's target."""
KILLED = ("step follow run", "span arrive begin", "span claim begin", "span route begin",
          "step confirm run")  # fmt: skip
LEFT = {
    STREAM: (*KILLED, "step copy run"),
    CLONE: (*KILLED, "step clone run", "step promote run", "step open run", "step retire run"),
}
"""Where a process is killed."""


def each(found: Mapping[str, Sequence[tuple[str, ...]]]) -> list[ParameterSet]:
    """Give the cases of both targets as parameters."""
    return [
        pytest.param(target, *case, id="-".join((target, *case)))
        for target, cases in found.items()
        for case in cases
    ]


def unlock(follows: Follows) -> None:
    """Take its locks from whoever is at work on the move."""
    fleet, target = follows.fleet, follows.target
    for node in ("a", target) if fleet.runs(target) else ("a",):
        fleet.ask(node, END_LOCKING)


@pytest.mark.parametrize(
    ("fleet_followed", "point", "verb"),
    each(
        {
            target: [
                *((point, verb) for point in UNDOABLE for verb in ("resume", "abort")),
                *cases,
                ("span claim begin", "resume"),
                ("span route begin", "resume"),
                ("step confirm run", "resume"),
            ]
            for target, cases in LOSING.items()
        }
    ),
    indirect=["fleet_followed"],
)
def test_an_operator_who_lost_the_locks_to_another_does_nothing_more(
    fleet_followed: Follows, point: str, verb: str
) -> None:
    fleet, target = fleet_followed
    with Busy(fleet, target=target) as clients:
        mover = fleet.mover("start", point)
        mover.at(point)
        unlock(fleet_followed)
        finish(fleet, verb)
        mover.go()
        ended_well = mover.end() == 0  # it may find that the move is done
        assert not (ended_well and (verb == "abort" or point in UNDOABLE)), mover.said
        clients.wait_served()
    assert clients.errors() == []
    assert fleet.owner == ("a" if verb == "abort" else target)
    prove_streamed(fleet, clients)


@pytest.mark.parametrize("verbs", [("resume", "resume"), ("abort", "resume")], ids=" and ".join)
@pytest.mark.parametrize(
    ("fleet_followed", "point"),
    each({target: [(point,) for point in points] for target, points in LEFT.items()}),
    indirect=["fleet_followed"],
)
def test_two_operators_at_what_a_killed_process_has_left(
    fleet_followed: Follows, point: str, verbs: tuple[str, str]
) -> None:
    """One of them gets the locks; the other is refused, or finds what the first has done."""
    fleet, target = fleet_followed
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


def test_nobody_aborts_what_another_has_decided_meanwhile(fleet_followed: Follows) -> None:
    fleet, target = fleet_followed
    patient(fleet)
    with Busy(fleet, target=target) as clients:
        mover = fleet.mover("start", "span decide begin", "span claim begin")
        mover.at("span decide begin")
        unlock(fleet_followed)
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
