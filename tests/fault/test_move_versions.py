"""Moves on newer major versions than the system's, where those differ in what a fence meets."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from shardctl.hosts import accounts
from shardctl.postgres import binaries
from tests.fixtures.moves.proof import prove
from tests.fixtures.moves.stopping import DATABASE, ROLE, MovingFleet, add_pooler, patient
from tests.fixtures.moves.writers import WRITES, Clients
from tests.fixtures.servers.postgres import free_ports, stop_all_below

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fixtures.fleets.pooled import AddPooler
    from tests.fixtures.servers.postgres import StartServer

pytestmark = [pytest.mark.fault, pytest.mark.embedded]

NEWEST = 18


@pytest.fixture
def newest(
    pg_server: StartServer, server_directory: Path, tmp_path: Path, pooler_for: AddPooler
) -> Iterator[MovingFleet]:
    """Give a fleet like `fleet_points` on the newest version that tests have."""
    servers = {"a": pg_server(major=NEWEST), "b": pg_server(major=NEWEST)}
    found = binaries.of_major(NEWEST)
    assert found is not None
    place = server_directory / "nodes" / "c"
    place.parent.mkdir()
    if (account := accounts.server_account(None)) is not None:
        shutil.chown(place.parent, account)
    (port,) = free_ports(1)
    made = MovingFleet(tmp_path, servers, DATABASE, ROLE, place=place, port=port)
    made.of_target = f", bin_directory: {found.directory}"
    made.migration("0001_writes.sql", WRITES)
    add_pooler(made, pooler_for)
    made.init()
    yield made
    for mover in made.movers:
        mover.close()
    stop_all_below(server_directory)
    made.drop()


def test_a_table_that_is_committed_behind_the_fence_arrives_with_its_rows(
    newest: MovingFleet,
) -> None:
    patient(newest)
    with Clients(newest) as clients:
        with newest.log_in("a", user="postgres", autocommit=False) as session:
            session.execute("CREATE TABLE shard2.made AS SELECT 7 AS kept")
            mover = newest.mover("start", "span drain begin", "span mark begin")
            mover.at("span drain begin")
            mover.go()
            with pytest.raises(AssertionError, match="no point was reached"):
                mover.next(seconds=0.3)
            session.commit()
        mover.at("span mark begin")
        mover.go()
        assert mover.end() == 0, mover.said
        assert newest.ask("c", "SELECT kept FROM shard2.made") == [(7,)]
        newest.ask("c", "DROP TABLE shard2.made")
    assert clients.errors() == []
    prove(newest, clients)
