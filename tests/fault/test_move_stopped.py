"""The process of a move stopped while clients wait, which wakes up when all is decided."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.moves.proof import prove
from tests.fixtures.moves.stopping import finish
from tests.fixtures.moves.windows import in_the_window, wait_served
from tests.fixtures.moves.writers import FENCE, Clients

if TYPE_CHECKING:
    from tests.fixtures.moves.stopping import MovingFleet

pytestmark = pytest.mark.fault


@pytest.mark.parametrize("point", ["span fence begin", "span promote begin", "span route begin"])
def test_a_move_that_stops_and_wakes_up_too_late_does_no_harm(
    fleet_points: MovingFleet, point: str
) -> None:
    with Clients(fleet_points) as clients:
        mover = fleet_points.mover("start", point)
        mover.at(point)
        mover.signal(signal.SIGSTOP)
        window = in_the_window(fleet_points, point)
        wait_served(fleet_points, clients, window=window)
        other = fleet_points.here("moves", "abort", "--yes")
        assert other.returncode in {1, 3}, "its locks are held"
        mover.go()
        mover.signal(signal.SIGCONT)
        if mover.end() != 0:
            finish(fleet_points, "resume")
        clients.wait_served()
    assert clients.codes() <= (FENCE if window else set()), clients.errors()
    prove(fleet_points, clients)
