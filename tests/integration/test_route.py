"""`route` asks the databases: a stale file prints no old node in silence."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any

import pytest

from tests.fixtures.servers.postgres import free_ports

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from tests.fixtures.fleets.fleet import Fleet


def routed(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def give(fleet: Fleet, node: str, shard: int, owner: str, version: int) -> None:
    """Let a node's map say something newer, as a move does."""
    fleet.execute(node, f"UPDATE shardctl.map SET node = '{owner}' WHERE shard = {shard}")
    fleet.execute(node, f"UPDATE shardctl.cluster SET map_version = {version}")


def test_the_databases_say_where_a_shard_is_and_not_a_stale_file(fleet_8: Fleet) -> None:
    for node in "ab":
        give(fleet_8, node, 5, "a", 2)
    done = fleet_8.here("route", "5", "6", "-o", "json")
    assert done.returncode == 0, done.stderr
    moved, stayed = routed(done)
    assert (moved["node"], stayed["node"]) == ("a", "b")
    assert moved["dsn"]["node"].startswith(f"host=127.0.0.1 port={fleet_8.servers['a'].port} ")
    assert moved["map"]["version"] == 2
    assert moved["map"]["from"] == "node"
    assert moved["map"]["node"] in ("a", "b")
    assert "topology.yaml" in done.stderr
    offline = fleet_8.here("route", "5", "--offline", "-o", "json")
    (old,) = routed(offline)
    assert (old["node"], old["map"]) == ("b", {"version": None, "from": "file", "node": None})


@pytest.fixture
def silent() -> Iterator[int]:
    """Give a port where the connection is accepted and nothing is ever answered."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_where_no_database_answers_the_file_does_and_that_is_said(
    fleet_8: Fleet, silent: int
) -> None:
    with fleet_8.at_ports(a=silent, b=free_ports(1)[0]):
        done = fleet_8.here("route", "5", "-o", "json")
        bad = fleet_8.here("route", "--id", "ann")
    (found,) = routed(done)
    assert (found["node"], found["map"]["from"]) == ("b", "file")
    assert done.returncode == 0
    assert "topology.yaml" in done.stderr
    # Bad keys alone contact no database.
    assert (bad.returncode, bad.stdout, "answered" in bad.stderr) == (2, "", False)
