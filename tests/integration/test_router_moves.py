"""A real move under an application that uses the router: no error, and no row lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fixtures.moves import loads
from tests.fixtures.moves.stopping import finish

if TYPE_CHECKING:
    from tests.fixtures.moves.stopping import MovingFleet

pytestmark = pytest.mark.proof


def test_the_load_through_the_router_sees_no_error_while_shards_move(
    fleet_points: MovingFleet,
) -> None:
    with loads.start(fleet_points, aliases="router", clients=4) as load:
        loads.wait_for_writes(load)
        mover = fleet_points.mover("start")
        if mover.end() != 0:
            finish(fleet_points, "resume")
        assert fleet_points.state() == "done", mover.said
        loads.wait_for_writes(load)
        found = load.check()
    assert found.ok, (found.failures, found.verdict)
    assert found.moved == (2, 3)
    assert found.fenced > 0
