"""Streamed moves on and between the major versions that differ in what a stream meets."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.moves import streamed
from tests.fixtures.moves.proof import prove
from tests.fixtures.moves.stopping import DATABASE, ROLE, MovingFleet, add_pooler, finish, patient
from tests.fixtures.moves.writers import SERVED_S, WRITES, Clients
from tests.fixtures.servers.postgres import free_ports, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fixtures.fleets.pooled import AddPooler
    from tests.fixtures.servers.postgres import StartServer

pytestmark = pytest.mark.fault

SETTINGS = {"wal_level": "logical"}
VERSIONS = [
    (15, 15),
    *(pytest.param(v, marks=pytest.mark.embedded) for v in ((16, 16), (18, 18), (15, 18))),
]


@pytest.fixture(params=VERSIONS, ids=lambda versions: f"{versions[0]}-{versions[1]}")
def fleet_versions(
    request: pytest.FixtureRequest,
    pg_server: StartServer,
    server_directory: Path,
    tmp_path: Path,
    pooler_for: AddPooler,
) -> Iterator[MovingFleet]:
    """Give a fleet whose nodes a and b have these versions."""
    here, there = request.param
    servers = {
        "a": pg_server(SETTINGS, major=None if here == 15 else here),
        "b": pg_server(SETTINGS, major=None if there == 15 else there),
    }
    (port,) = free_ports(1)
    place = server_directory / "nodes" / "c"
    place.parent.mkdir()
    made = MovingFleet(tmp_path, servers, DATABASE, ROLE, place=place, port=port)
    made.migration("0001_writes.sql", WRITES)
    add_pooler(made, pooler_for)
    made.init()
    streamed.use(made)
    yield made
    streamed.end(made)
    made.drop()


def test_a_move_between_versions_loses_nothing(fleet_versions: MovingFleet) -> None:
    with Clients(fleet_versions, target="b") as clients:
        mover = fleet_versions.mover("start")
        assert mover.end() == 0, mover.said
        clients.wait_served()
    assert clients.errors() == []
    assert streamed.left(fleet_versions) == []
    prove(fleet_versions, clients)


def test_a_process_killed_behind_the_decision_costs_no_error(fleet_versions: MovingFleet) -> None:
    with Clients(fleet_versions, target="b") as clients:
        for point in ("span arrive begin", "span claim begin"):
            verb = "start" if point == "span arrive begin" else "resume"
            mover = fleet_versions.mover(verb, point)
            mover.at(point)
            mover.kill()
            clients.wait_served()
            wait_for(lambda: not fleet_versions.is_locked())
        wait_for(lambda: fleet_versions.state("b") == "claimed", seconds=SERVED_S)
        finish(fleet_versions, "resume")
        clients.wait_served()
    assert clients.errors() == []
    assert streamed.left(fleet_versions) == []
    prove(fleet_versions, clients)


def test_a_table_made_over_the_fence_ends_the_cutover(fleet_versions: MovingFleet) -> None:
    """On 16 and newer the rename does not wait for it, and locks on tables catch no one."""
    patient(fleet_versions)
    with Clients(fleet_versions, target="b") as clients:
        with fleet_versions.log_in("a", user="postgres", autocommit=False) as session:
            mover = fleet_versions.mover("start", "span fence begin", "span drain begin")
            mover.at("span fence begin")
            session.execute("CREATE TABLE shard2.made AS SELECT 7 AS kept")
            mover.go()
            with contextlib.suppress(AssertionError):  # on 15, the fence waits
                if mover.next(seconds=1) is not None:
                    mover.go()
            session.commit()
        if mover.next() is not None:
            mover.go()
        assert mover.end() == 3, mover.said
        assert any(line.startswith(("StructureChanged", "FenceRefused")) for line in mover.said)
        clients.wait_served()
        assert fleet_versions.ask("a", "SELECT kept FROM shard2.made") == [(7,)]
        fleet_versions.ask("a", "DROP TABLE shard2.made")
        finish(fleet_versions, "abort")
    assert clients.errors() == []
    assert streamed.left(fleet_versions) == []
    prove(fleet_versions, clients)


def test_a_rewriting_alter_ends_the_move_before_clients_wait(fleet_versions: MovingFleet) -> None:
    """It leaves the structure equal, and the stream has none of its rows."""
    mover = fleet_versions.mover("start", "step cutover run")
    mover.at("step cutover run")
    fleet_versions.ask("a", "ALTER TABLE shard2.writes ALTER token TYPE bigint USING token + 0")
    mover.go()
    assert mover.end() == 3
    assert any(line.startswith("StructureChanged") for line in mover.said), mover.said
    finish(fleet_versions, "abort")
    assert streamed.left(fleet_versions) == []
