"""The process of a move that clones killed at points, and its clients served by guards alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fixtures.moves.proof import prove
from tests.fixtures.moves.stopping import finish
from tests.fixtures.moves.windows import in_the_window, wait_served
from tests.fixtures.moves.writers import FENCE, SERVED_S, Clients

if TYPE_CHECKING:
    from tests.fixtures.moves.stopping import MovingFleet

pytestmark = pytest.mark.fault


def can_abort(fleet: MovingFleet) -> bool:
    """Tell whether the source can have its shards back."""
    move = fleet.journal()
    return move is not None and move.state.undoable


@pytest.mark.parametrize(
    "point",
    [
        "step clone run",
        "step follow run",
        "span arm guards begin",
        "span fence begin",
        "span decide begin",
        "span promote begin",
        "span claim begin",
        "span route begin",
        "span map begin",
        "step retire run",
    ],
)
def test_a_move_killed_anywhere_serves_its_clients_and_can_be_ended(
    fleet_points: MovingFleet, point: str
) -> None:
    with Clients(fleet_points) as clients:
        mover = fleet_points.mover("start", point)
        mover.at(point)
        mover.kill()
        window = in_the_window(fleet_points, point)
        wait_served(fleet_points, clients, window=window)
        if fleet_points.state() == "none":  # it had not begun
            return
        abort = can_abort(fleet_points) and len(point) % 2 == 0
        finish(fleet_points, "abort" if abort else "resume")
        clients.wait_served()
    assert clients.codes() <= (FENCE if window else set()), clients.errors()
    assert window or clients.gap() < SERVED_S
    assert fleet_points.owner == ("a" if abort else "c")
    prove(fleet_points, clients)
