"""The source fails over to its synchronous standby in a streamed move, on every version."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fixtures.moves import streamed
from tests.fixtures.moves.busy import Busy, prove_streamed
from tests.fixtures.moves.failover import SLOT, fail_over, make_standby
from tests.fixtures.moves.harm import retry_soon
from tests.fixtures.moves.stopping import NEWER, OLDEST, finish
from tests.fixtures.moves.writers import FENCE, GONE
from tests.fixtures.servers.postgres import PgServer, free_ports, stop_all_below

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from shardctl.sandbox.local import LocalServer
    from tests.fixtures.moves.stopping import MovingFleet

pytestmark = pytest.mark.fault


@pytest.fixture
def standby_for(server_directory: Path) -> Iterator[Callable[[MovingFleet], LocalServer]]:
    """Give what makes a standby of node a that has all that clients are acknowledged."""

    def make(fleet: MovingFleet) -> LocalServer:
        (port,) = free_ports(1)
        made = make_standby(fleet.servers["a"].server, server_directory / "standby", port)
        fleet.set("a", "synchronous_standby_names", SLOT)
        return made

    yield make
    stop_all_below(server_directory)


@pytest.mark.parametrize("fleet_versions", [OLDEST, NEWER[1]], indirect=True)
@pytest.mark.parametrize(
    ("point", "alone"),
    [("span decide begin", False), ("span claim begin", True), ("span route begin", False)],
)
def test_a_source_that_fails_over_loses_nothing(
    standby_for: Callable[[MovingFleet], LocalServer],
    fleet_versions: MovingFleet,
    point: str,
    *,
    alone: bool,
) -> None:
    standby = standby_for(fleet_versions)
    retry_soon(fleet_versions)
    with Busy(fleet_versions) as clients:
        mover = fleet_versions.mover("start", point)
        mover.at(point)
        if not alone:
            mover.kill()
        promoted = fail_over(fleet_versions.servers["a"].server, standby)
        fleet_versions.servers = {**fleet_versions.servers, "a": PgServer(promoted)}
        if alone:
            mover.go()
            mover.end(seconds=120)
        finish(fleet_versions, "resume")
        clients.wait_served()
    assert clients.codes() <= FENCE | GONE, clients.errors()
    assert fleet_versions.owner == streamed.TARGET
    prove_streamed(fleet_versions, clients)
