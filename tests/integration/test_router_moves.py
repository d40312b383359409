"""A real move under an application that uses the router: no error, and no row lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fixtures.moves import loads

if TYPE_CHECKING:
    from tests.fixtures.moves.own import Lab

pytestmark = pytest.mark.proof


def test_the_load_through_the_router_sees_no_error_while_shards_move(fleet_own: Lab) -> None:
    with loads.start(fleet_own.topology, aliases="router", clients=4) as load:
        loads.wait_for_writes(load)
        fleet_own.move([2, 3], "c", max_pause_s=60.0)
        loads.wait_for_writes(load)
        found = load.check()
    assert found.ok, (found.failures, found.verdict)
    assert found.moved == (2, 3)
    assert found.fenced > 0
