"""A pooler ends, hangs, or has files that cannot be written, while shards move."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fixtures.moves.harm import immutable
from tests.fixtures.moves.proof import prove
from tests.fixtures.moves.stopping import add_pooler, finish
from tests.fixtures.moves.writers import MAX_PAUSE_S, SERVED_S, Clients
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from tests.fixtures.fleets.pooled import AddPooler
    from tests.fixtures.moves.stopping import MovingFleet

pytestmark = pytest.mark.fault


def test_a_staged_file_that_cannot_be_written(
    fleet_points: MovingFleet, pooler_for: AddPooler
) -> None:
    pooler = add_pooler(fleet_points, pooler_for, "p2")
    staged = pooler.databases_file.with_name(f"{pooler.databases_file.name}.staged")
    with Clients(fleet_points) as clients:
        staged.mkdir()
        mover = fleet_points.mover("start")
        assert mover.end() == 3, mover.said
        assert any(str(staged) in line for line in mover.said), mover.said
        assert fleet_points.state() == "undone"
        staged.rmdir()
        finish(fleet_points, "abort")
    assert clients.errors() == []
    assert clients.gap() < MAX_PAUSE_S
    prove(fleet_points, clients)


def test_a_file_of_aliases_that_cannot_be_replaced(
    fleet_points: MovingFleet, pooler_for: AddPooler
) -> None:
    pooler = add_pooler(fleet_points, pooler_for, "p2")
    with Clients(fleet_points) as clients:
        mover = fleet_points.mover("start", "span route begin")
        mover.at()
        with immutable(pooler.databases_file):
            mover.go()
            assert mover.end() == 3, mover.said
            clients.wait_served()
            wait_for(lambda: fleet_points.paused() == [], seconds=SERVED_S)
        finish(fleet_points, "resume")
    assert clients.errors() == [], "of the other pooler"
    prove(fleet_points, clients)
