"""The process of a move killed before and after every step, and before every sub-step.

Steps and sub-steps are read from the code: a new one has its tests without a word here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fixtures import points
from tests.fixtures.harming import occupy
from tests.fixtures.moving import finish
from tests.fixtures.proving import prove
from tests.fixtures.windows import BEGINS, in_the_window, wait_served
from tests.fixtures.writing import FENCE, SERVED_S, Clients

if TYPE_CHECKING:
    from tests.fixtures.moving import MovingFleet

pytestmark = pytest.mark.fault


def can_abort(fleet: MovingFleet) -> bool:
    """Tell whether the source can have its shards back."""
    move = fleet.journal()
    return move is not None and move.state.undoable


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
        window = in_the_window(moving, point)
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
