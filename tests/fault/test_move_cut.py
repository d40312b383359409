"""Connections of shardctl break off while shards move."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardctl.state.journal import MoveState
from tests.fixtures.harming import cut
from tests.fixtures.moving import finish
from tests.fixtures.proving import prove
from tests.fixtures.writing import SERVED_S, Clients

if TYPE_CHECKING:
    from tests.fixtures.moving import MovingFleet

pytestmark = pytest.mark.fault

UNDOABLE = {state.value for state in MoveState if state.undoable}


@pytest.mark.parametrize("node", ["a", "c"])
@pytest.mark.parametrize(
    "point", ["span pause begin", "span mark begin", "span decide begin", "span claim begin"]
)
def test_connections_that_break_off(moving: MovingFleet, point: str, node: str) -> None:
    with Clients(moving) as clients:
        mover = moving.mover("start", point)
        mover.at(point)
        cut(moving, node)
        mover.go()
        code = mover.end()
        clients.wait_served({0})
        if code != 0:
            finish(moving, "abort" if moving.state() in UNDOABLE else "resume")
        clients.wait_served()
    assert clients.gap() < SERVED_S
    prove(moving, clients)
