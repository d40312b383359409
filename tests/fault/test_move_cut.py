"""Connections of shardctl break off while shards move."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardctl.state.journal import MoveState
from tests.fixtures.moves.harm import cut
from tests.fixtures.moves.proof import prove
from tests.fixtures.moves.stopping import finish
from tests.fixtures.moves.writers import SERVED_S, Clients

if TYPE_CHECKING:
    from tests.fixtures.moves.stopping import MovingFleet

pytestmark = pytest.mark.fault

UNDOABLE = {state.value for state in MoveState if state.undoable}


@pytest.mark.parametrize("node", ["a", "c"])
@pytest.mark.parametrize(
    "point", ["span pause begin", "span mark begin", "span decide begin", "span claim begin"]
)
def test_connections_that_break_off(fleet_points: MovingFleet, point: str, node: str) -> None:
    with Clients(fleet_points) as clients:
        mover = fleet_points.mover("start", point)
        mover.at(point)
        cut(fleet_points, node)
        mover.go()
        code = mover.end()
        clients.wait_served({0})
        if code != 0:
            finish(fleet_points, "abort" if fleet_points.state() in UNDOABLE else "resume")
        clients.wait_served()
    assert clients.gap() < SERVED_S
    prove(fleet_points, clients)
