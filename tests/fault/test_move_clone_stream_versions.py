"""A clone that hands over by stream on every version, and is killed on its way there and back."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.moves import clone_streamed, streamed
from tests.fixtures.moves.busy import prove_streamed
from tests.fixtures.moves.proof import prove
from tests.fixtures.moves.stopping import finish
from tests.fixtures.moves.stream_versions import OLDEST, SAME
from tests.fixtures.moves.writers import Clients
from tests.fixtures.servers.postgres import stop_all_below, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fixtures.moves.stopping import MovingFleet

pytestmark = [
    pytest.mark.fault,
    pytest.mark.parametrize("fleet_versions", [OLDEST, *SAME], indirect=True),
]


@pytest.fixture
def place_for_servers(server_directory: Path) -> Iterator[Path]:
    """Give a directory whose servers end after the fleet of a test."""
    yield server_directory
    stop_all_below(server_directory)


@pytest.fixture
def fleet_cloned(place_for_servers: Path, fleet_versions: MovingFleet) -> MovingFleet:
    """Give such a fleet whose moves clone node a onto c."""
    assert place_for_servers.is_dir()
    clone_streamed.use(fleet_versions)
    return fleet_versions


def test_a_round_trip_loses_nothing(fleet_cloned: MovingFleet) -> None:
    fleet = fleet_cloned
    fleet.choice = dataclasses.replace(fleet.choice, keep_reverse_s=3600.0)
    with Clients(fleet, target="c") as clients:
        for verb, owner in (("start", "c"), ("reverse", "a")):
            mover = fleet.mover(verb)
            assert mover.end(seconds=120) == 0, mover.said
            assert fleet.owner == owner
            clients.wait_served()
    assert clients.errors() == []
    assert fleet.state() == fleet.state("c") == "done"
    assert streamed.left(fleet) == []
    prove(fleet, clients, version=3, stays=True)


@pytest.mark.parametrize("point", ["span fence begin", "span claim begin", "step promote run"])
def test_a_process_killed_costs_no_error(fleet_cloned: MovingFleet, point: str) -> None:
    fleet = fleet_cloned
    with Clients(fleet, target="c") as clients:
        mover = fleet.mover("start", point)
        mover.at(point)
        mover.kill()
        clients.wait_served()  # by guards: nobody resumes yet
        wait_for(lambda: not fleet.is_locked())
        finish(fleet, "resume")
        clients.wait_served()
    assert clients.errors() == []
    assert fleet.owner == "c"
    prove_streamed(fleet, clients)
