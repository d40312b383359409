"""Roles, databases and servers whose defaults differ from PostgreSQL's."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from shardctl.postgres import connection
from tests.fixtures.servers.postgres import local_node, local_topology

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fixtures.moves.stopping import MovingFleet as MovedFleet
    from tests.fixtures.servers.postgres import StartServer

ODD = {
    "DateStyle": "German",
    "IntervalStyle": "iso_8601",
    "bytea_output": "escape",
    "extra_float_digits": "-15",
    "quote_all_identifiers": "on",
    "standard_conforming_strings": "off",
    "default_transaction_isolation": "serializable",
    "default_transaction_read_only": "on",
    "default_transaction_deferrable": "on",
    "statement_timeout": "1ms",
    "search_path": "nowhere",
}


@pytest.fixture
def odd(fleet_spares: MovedFleet) -> Iterator[MovedFleet]:
    """Give a fleet whose operator's role has odd defaults on every node."""
    for server in fleet_spares.servers.values():
        with server.connect() as session:
            for name, value in ODD.items():
                session.execute(f"ALTER ROLE postgres SET {name} = '{value}'".encode())
    yield fleet_spares
    usual = "-c default_transaction_read_only=off -c statement_timeout=0"
    for server in fleet_spares.servers.values():
        with server.connect(options=usual) as session:
            session.execute("ALTER ROLE postgres RESET ALL")


@pytest.mark.long
def test_a_move_does_not_depend_on_the_defaults_of_the_operators_role_and_environment(
    odd: MovedFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGTARGETSESSIONATTRS", "read-write")
    monkeypatch.setenv("PGDATESTYLE", "German")
    assert odd.here("init", "--yes").returncode == 0
    done = odd.here("move-shards", "2-3", "--to", "c", "--yes", "--retain", "0s")
    assert done.returncode == 0, done.stderr
    assert odd.owned()["c"] == "2-3"
    [move] = odd.listed()
    assert move["state"] == "done"
    done = odd.here("prune", "--yes")
    assert done.returncode == 0, done.stderr
    assert odd.problems() == []


@pytest.mark.embedded
def test_no_transaction_timeout_ends_shardctls_sessions(
    pg_server: StartServer, tmp_path: Path
) -> None:
    server = pg_server({"transaction_timeout": "5min"}, major=18)
    with server.connect() as session:
        session.execute("ALTER ROLE postgres SET transaction_timeout = '1min'")
    node = local_node(tmp_path, "a", server.port, range(1))
    database = dataclasses.replace(local_topology(tmp_path, node).database, name="postgres")
    with connection.connect(node, database, purpose="test") as session:
        assert session.execute("SHOW transaction_timeout").fetchone() == ("0",)
