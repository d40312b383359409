"""Roles, databases and servers whose defaults differ from PostgreSQL's."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import pytest

from shardctl.postgres import connection
from shardctl.topology.model import NodeName
from tests.fixtures.servers.postgres import local_node, local_topology

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.moves.own import Lab
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


@pytest.mark.long
def test_a_move_does_not_depend_on_the_defaults_of_the_operators_role_and_environment(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    for node in "ab":
        with fleet_own.connect(node) as session:
            for name, value in ODD.items():
                session.execute(f"ALTER ROLE postgres SET {name} = '{value}'".encode())
    monkeypatch.setenv("PGTARGETSESSIONATTRS", "read-write")
    monkeypatch.setenv("PGDATESTYLE", "German")
    assert fleet_own.here("init", "--yes").returncode == 0
    done = fleet_own.here("move-shards", "2-3", "--to", "c", "--yes", "--retain", "0s")
    assert done.returncode == 0, done.stderr
    assert fleet_own.topology.nodes[NodeName("c")].shards == (2, 3)
    assert fleet_own.leads("shard2") == "c"
    [move] = json.loads(fleet_own.here("moves", "list", "-o", "json").stdout)["moves"]
    assert move["state"] == "done"
    done = fleet_own.here("prune", "--yes")
    assert done.returncode == 0, done.stderr
    assert fleet_own.problems() == []


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
