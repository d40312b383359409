"""The process of a move stopped while clients wait, which wakes up when all is decided."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.moving import finish
from tests.fixtures.proving import prove
from tests.fixtures.windows import BEGINS, in_the_window, wait_served
from tests.fixtures.writing import FENCE, Clients

if TYPE_CHECKING:
    from tests.fixtures.moving import MovingFleet

pytestmark = pytest.mark.fault

UNPAUSED = {"open consoles", "stage files", "rehearse guards", "arm guards", "confirm"} | {
    "logins", "settings", "slot", "map", "file", "disarm",
}  # fmt: skip
"""Sub-steps before which no alias is paused; where a new one is, its tests only wait longer."""
PAUSED = [
    begin for begin in BEGINS if begin.removeprefix("span ").removesuffix(" begin") not in UNPAUSED
]


@pytest.mark.parametrize("point", PAUSED)
def test_a_move_that_stops_and_wakes_up_too_late_does_no_harm(
    moving: MovingFleet, point: str
) -> None:
    with Clients(moving) as clients:
        mover = moving.mover("start", point)
        mover.at(point)
        mover.signal(signal.SIGSTOP)
        window = in_the_window(moving, point)
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
