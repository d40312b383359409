"""The source ends, or hangs, while shards move from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fixtures.moves.harm import kill, retry_soon
from tests.fixtures.moves.proof import prove
from tests.fixtures.moves.stopping import finish
from tests.fixtures.moves.writers import Clients

if TYPE_CHECKING:
    from tests.fixtures.moves.stopping import MovingFleet

pytestmark = pytest.mark.fault


@pytest.mark.parametrize(
    ("point", "verb"),
    [("step follow run", "abort"), ("span promote begin", "resume")],
)
def test_a_source_that_is_killed_and_is_back_when_the_move_has_stopped(
    fleet_points: MovingFleet, point: str, verb: str
) -> None:
    server = fleet_points.servers["a"].server
    retry_soon(fleet_points)
    with Clients(fleet_points) as clients:
        mover = fleet_points.mover("start", point)
        mover.at(point)
        kill(server.data_directory)
        mover.go()
        assert mover.end() == 3, mover.said
        assert fleet_points.paused() == [] or fleet_points.guards()
        if verb == "resume" and point in {"span promote begin", "span slot begin"}:
            clients.wait_served({2, 3})
        server.start()
        finish(fleet_points, verb)
        clients.wait_served()
    assert fleet_points.owner == ("a" if verb == "abort" else "c")
    prove(fleet_points, clients)


@pytest.mark.parametrize(
    ("point", "verb"),
    [("span drain begin", "abort"), ("span decide begin", "resume")],
)
def test_a_source_that_is_killed_and_is_soon_back_has_no_fence(
    fleet_points: MovingFleet, point: str, verb: str
) -> None:
    server = fleet_points.servers["a"].server
    retry_soon(fleet_points)
    with Clients(fleet_points) as clients:
        mover = fleet_points.mover("start", point)
        mover.at(point)
        kill(server.data_directory)
        mover.go()
        server.start()
        assert mover.end() == 3, mover.said
        assert fleet_points.state() == "undone"
        clients.wait_served()
        assert fleet_points.guards() == []
        finish(fleet_points, verb)
        clients.wait_served()
    assert fleet_points.owner == ("a" if verb == "abort" else "c")
    prove(fleet_points, clients)
