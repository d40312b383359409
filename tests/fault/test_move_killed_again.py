"""The process of a move, or of its end, killed again and again, and between two things that
belong together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fixtures.moves import points
from tests.fixtures.moves.proof import prove
from tests.fixtures.moves.stopping import finish
from tests.fixtures.moves.windows import BEGINS
from tests.fixtures.moves.writers import FENCE, Clients
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from tests.fixtures.moves.stopping import MovingFleet

pytestmark = pytest.mark.fault

BETWEEN = [
    "span claim begin +2",  # claimed and opened up, and nobody knows
    "span open begin +4",  # files in their places that were not read
    "span route begin +2",  # the file is in its place, and was not read
    "span route begin +3",  # all aliases resumed, and nobody knows
    "span serve begin +2",  # server_login_retry is still short
    "span slot begin +2",
    "span map begin +10",  # all know it but the source's journal
    "span disarm end +2",  # routed on the target, claimed on the source
    "span confirm end +2",  # the proof on the target, not on the source
    "step retire run +3",  # the mark is gone
    "step retire run +6",  # over on the target, not on the source
]
"""Places after the point of no return between two things that belong together."""
EVERYWHERE = [*points.of_steps()[::2], *BEGINS[::3], *BETWEEN]
"""Enough for one move to be killed at."""


def test_a_move_killed_again_and_again_gets_to_its_end(fleet_points: MovingFleet) -> None:
    left = set(EVERYWHERE)
    with Clients(fleet_points) as clients:
        mover = fleet_points.mover("start", *left)
        while (point := mover.next()) is not None:
            mover.kill()
            left.remove(point)
            wait_for(lambda: not fleet_points.is_locked())
            mover = fleet_points.mover(
                "start" if fleet_points.state() == "none" else "resume", *left
            )
        finish(fleet_points, "resume")
        clients.wait_served()
    assert clients.codes() <= FENCE, clients.errors()
    assert len(left) < len(EVERYWHERE) / 2
    prove(fleet_points, clients)


def test_an_abort_killed_again_and_again_gets_to_its_end(fleet_points: MovingFleet) -> None:
    left = set(points.of_undoing())
    with Clients(fleet_points) as clients:
        mover = fleet_points.mover("start", "span replay begin")
        mover.at()
        mover.kill()
        mover = fleet_points.mover("abort", *left)
        while (point := mover.next()) is not None:
            mover.kill()
            left.remove(point)
            wait_for(lambda: not fleet_points.is_locked())
            if fleet_points.state() == "aborted":
                break
            mover = fleet_points.mover("abort", *left)
        clients.wait_served()
    assert clients.errors() == []
    assert left <= {"undo reserve end"}
    assert fleet_points.owner == "a"
    prove(fleet_points, clients)
