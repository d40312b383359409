"""The process of a move killed or stopped, before and after every step and every sub-step.

Steps and sub-steps are read from the code: a new one has its tests without a word here.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.fixtures import points
from tests.fixtures.harming import occupy
from tests.fixtures.moving import finish
from tests.fixtures.proving import prove
from tests.fixtures.servers import wait_for
from tests.fixtures.writing import FENCE, SERVED_S, Clients

if TYPE_CHECKING:
    from tests.fixtures.moving import MovingFleet

pytestmark = pytest.mark.fault

UNPAUSED = {"open consoles", "stage files", "rehearse guards", "arm guards", "confirm"} | {
    "slot", "map", "file", "disarm",
}  # fmt: skip
"""Sub-steps before which no alias is paused; where a new one is, its tests only wait longer."""
BEGINS = [f"span {name} begin" for name in points.spans()]
PAUSED = [f"span {name} begin" for name in points.spans() if name not in UNPAUSED]
BETWEEN = [
    "span claim begin +4",  # new blocks of ids, and no claim
    "span open begin +4",  # files in their places that were not read
    "span route begin +2",  # the file is in its place, and was not read
    "span route begin +5",  # one alias resumed
    "span slot begin +2",
    "span map begin +10",  # all know it but the source's journal
    "span disarm end +2",  # routed on the target, claimed on the source
    "span confirm end +2",  # the proof on the target, not on the source
    "step retire run +3",  # the mark is gone
    "step retire run +6",  # over on the target, not on the source
]
"""Places after the point of no return between two things that belong together."""
EVERYWHERE = [*points.of_steps(), *BEGINS, *(f"{begin} +2" for begin in BEGINS), *BETWEEN]


def can_abort(fleet: MovingFleet) -> bool:
    """Tell whether the source can have its shards back."""
    move = fleet.journal()
    return move is not None and move.state.undoable


def in_the_window(fleet: MovingFleet) -> bool:
    """Tell whether guards cannot serve the moved shards: after the decision, before the claim."""
    if fleet.state() != "promoting":
        return False
    claimed = fleet.runs("c") and fleet.state("c") not in {"drained", "promoting"}
    return not claimed


def wait_served(fleet: MovingFleet, clients: Clients, *, window: bool) -> None:
    """Wait until clients are served, or get the fence's errors in the one window."""
    if not window:
        clients.wait_served()
        return
    # Not served, and not left waiting either.
    wait_for(lambda: fleet.paused() == [] and FENCE & clients.codes(), seconds=SERVED_S)
    clients.wait_served({0})


@pytest.mark.parametrize("point", [*points.of_steps(), *BEGINS])
def test_a_move_killed_anywhere_serves_its_clients_and_can_be_ended(
    moving: MovingFleet, point: str
) -> None:
    if point.startswith("step clear "):
        occupy(moving)
    with Clients(moving) as clients:
        mover = moving.mover("start", point)
        mover.at(point)
        mover.kill()
        window = in_the_window(moving)
        wait_served(moving, clients, window=window)
        if moving.state() == "none":  # it had not begun
            return
        abort = can_abort(moving) and len(point) % 2 == 0
        finish(moving, "abort" if abort else "resume")
        clients.wait_served()
    assert clients.codes() <= (FENCE if window else set()), clients.errors()
    assert window or clients.gap() < SERVED_S
    assert moving.owner == ("a" if abort else "c")
    prove(moving, clients)


@pytest.mark.parametrize("point", BETWEEN)
def test_a_move_killed_past_its_point_of_no_return_is_finished_at_once(
    moving: MovingFleet, point: str
) -> None:
    with Clients(moving) as clients:
        mover = moving.mover("start", point)
        mover.at(point)
        mover.kill()
        finish(moving, "resume")
        clients.wait_served()
    assert clients.errors() == []
    assert moving.owner == "c"
    prove(moving, clients)


def test_a_move_killed_again_and_again_gets_to_its_end(moving: MovingFleet) -> None:
    left = set(EVERYWHERE)
    with Clients(moving) as clients:
        mover = moving.mover("start", *left)
        while (point := mover.next()) is not None:
            mover.kill()
            left.remove(point)
            wait_for(lambda: not moving.is_locked())
            mover = moving.mover("start" if moving.state() == "none" else "resume", *left)
        finish(moving, "resume")
        clients.wait_served()
    assert clients.codes() <= FENCE, clients.errors()
    assert len(left) < len(EVERYWHERE) / 2
    prove(moving, clients)


def test_an_abort_killed_again_and_again_gets_to_its_end(moving: MovingFleet) -> None:
    left = set(points.of_undoing())
    with Clients(moving) as clients:
        mover = moving.mover("start", "span replay begin")
        mover.at()
        mover.kill()
        mover = moving.mover("abort", *left)
        while (point := mover.next()) is not None:
            mover.kill()
            left.remove(point)
            wait_for(lambda: not moving.is_locked())
            if moving.state() == "aborted":
                break
            mover = moving.mover("abort", *left)
        clients.wait_served()
    assert clients.errors() == []
    assert left <= {"undo reserve end"}
    assert moving.owner == "a"
    prove(moving, clients)


@pytest.mark.parametrize("point", PAUSED)
def test_a_move_that_stops_and_wakes_up_too_late_does_no_harm(
    moving: MovingFleet, point: str
) -> None:
    with Clients(moving) as clients:
        mover = moving.mover("start", point)
        mover.at(point)
        mover.signal(signal.SIGSTOP)
        window = in_the_window(moving)
        wait_served(moving, clients, window=window)
        other = moving.here("moves", "abort", "--yes")
        assert other.returncode in {1, 3}, "its locks are held"
        mover.go()
        mover.signal(signal.SIGCONT)
        if mover.end() != 0:
            finish(moving, "resume")
        clients.wait_served()
    assert clients.codes() <= (FENCE if window else set()), clients.errors()
    prove(moving, clients)
