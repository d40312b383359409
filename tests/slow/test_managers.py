"""Sources that repmgr or Patroni manages: what preflight finds, refuses and says of them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from shardctl.moves.preflight import managers
from tests.fixtures.servers.managers import ROLE, following, registered
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.fixtures.moves.preflight import Movable
    from tests.fixtures.servers.managers import PatroniNode, RepmgrNode
    from tests.fixtures.servers.postgres import PgServer

    ManagedBy = Callable[[PgServer], Movable]

SHARDS = [f"shard{number}" for number in range(8)]


@pytest.fixture
def primary(preloaded_server: PgServer, server_directory: Path) -> Iterator[RepmgrNode]:
    with registered(preloaded_server, server_directory) as made:
        yield made


@pytest.fixture
def fleet(primary: RepmgrNode, managed_by: ManagedBy) -> Movable:
    return managed_by(primary.server)


def test_a_standby_that_repmgr_may_promote_is_refused_until_it_is_paused(
    fleet: Movable, primary: RepmgrNode
) -> None:
    with following(primary) as standby:
        assert "two (127.0.0.1)" in fleet.only("standbys")
        with standby.watched():
            fleet.only("repmgr_failover")
            fleet.choose(ignore_standby=True)
            assert "--ignore-standby" in fleet.notes()
            fleet.choose(ignore_standby=False)
            standby.run("service", "pause")
            assert "`repmgr service unpause`" in fleet.notes()
            standby.run("service", "unpause")
            fleet.only("repmgr_failover")


def test_a_role_that_may_not_change_the_tables_of_repmgr_is_refused(
    fleet: Movable, primary: RepmgrNode
) -> None:
    with primary.server.connect(ROLE) as session:
        session.execute("CREATE ROLE mover LOGIN REPLICATION")
        try:
            database = dataclasses.replace(fleet.topology.database, user="mover")
            topology = dataclasses.replace(fleet.topology, database=database)
            fleet.fleet.execute(
                "a",
                f"GRANT CONNECT ON DATABASE {topology.database.name} TO mover;"
                f"GRANT USAGE ON SCHEMA shardctl, {', '.join(SHARDS)} TO mover;"
                "GRANT SELECT ON ALL TABLES IN SCHEMA shardctl TO mover",
            )
            assert "mover" in fleet.refused(topology)["repmgr_rights"]
            session.execute("GRANT USAGE ON SCHEMA repmgr TO mover")
            session.execute("GRANT SELECT, DELETE ON ALL TABLES IN SCHEMA repmgr TO mover")
            assert "repmgr_rights" not in fleet.refused(topology)
        finally:
            fleet.fleet.execute("a", "DROP OWNED BY mover")
            session.execute("DROP OWNED BY mover")
            session.execute("DROP ROLE mover")


def test_a_patroni_that_is_not_paused_is_refused(
    patroni: PatroniNode, managed_by: ManagedBy
) -> None:
    fleet = managed_by(patroni.server)
    fleet.only("patroni_failover")
    fleet.choose(ignore_standby=True)
    assert "node a" in fleet.notes()
    fleet.choose(ignore_standby=False)
    patroni.control("pause", "--wait")
    wait_for(lambda: look(patroni.server) is True)
    assert "`patronictl resume`" in fleet.notes()


def look(server: PgServer) -> bool | None:
    with server.connect() as session:
        return managers.look_for_patroni(session)
