"""The process of a move, or of its end, killed again and again, and between two things that
belong together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fixtures import points
from tests.fixtures.moving import finish
from tests.fixtures.proving import prove
from tests.fixtures.servers import wait_for
from tests.fixtures.windows import BEGINS
from tests.fixtures.writing import FENCE, Clients

if TYPE_CHECKING:
    from tests.fixtures.moving import MovingFleet

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
EVERYWHERE = [*points.of_steps()[::2], *BEGINS[::3], *BETWEEN[::2]]
"""Enough for one move to be killed at: all of them are tests of their own, too."""


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
