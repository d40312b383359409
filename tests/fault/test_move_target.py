"""The target ends, hangs, or has no room, while shards move to it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.moves import points
from tests.fixtures.moves.harm import kill, retry_soon, small_disk
from tests.fixtures.moves.proof import prove
from tests.fixtures.moves.stopping import finish
from tests.fixtures.moves.writers import Clients

if TYPE_CHECKING:
    from tests.fixtures.moves.stopping import MovingFleet

pytestmark = pytest.mark.fault


@pytest.mark.parametrize(
    ("point", "verb"),
    [
        (points.FOLLOWING, "resume"),
        ("span snapshot begin", "abort"),
        ("span promote begin", "resume"),
        ("span claim begin", "resume"),
    ],
)
def test_a_target_that_is_killed(fleet_points: MovingFleet, point: str, verb: str) -> None:
    retry_soon(fleet_points)
    with Clients(fleet_points) as clients:
        mover = fleet_points.mover("start", point)
        mover.at(point)
        kill(fleet_points.place)
        mover.go()
        mover.end()
        clients.wait_served({0})
        if verb == "abort" or fleet_points.state() in {"reserved", "undone"}:
            clients.wait_served()
            assert clients.errors() == []
        finish(fleet_points, verb)
        clients.wait_served()
    assert fleet_points.owner == ("a" if verb == "abort" else "c")
    prove(fleet_points, clients)


@pytest.mark.parametrize("verb", ["resume", "abort"])
def test_a_target_whose_disk_is_full_during_the_copy(fleet_points: MovingFleet, verb: str) -> None:
    folder = fleet_points.place.parent / "disk"
    folder.mkdir()
    fleet_points.place = folder / "c"
    fleet_points.file.unlink()
    with small_disk(folder, "24m") as make_large, Clients(fleet_points) as clients:
        mover = fleet_points.mover("start")
        assert mover.end() == 3, mover.said
        assert any("CopyFailed" in line for line in mover.said), mover.said
        make_large()
        finish(fleet_points, verb)
        clients.wait_served()
        assert clients.errors() == []
        prove(fleet_points, clients)
        if verb == "resume":
            dataclasses.replace(
                fleet_points.servers["a"].server, data_directory=fleet_points.place
            ).stop()
