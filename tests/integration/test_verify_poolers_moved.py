"""The check `poolers`: connections left behind, maps of other opinion, thousands of aliases."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any

import pytest

from shardctl.pgbouncer import render
from shardctl.topology import loader
from tests.fixtures import offering as fixtures
from tests.fixtures.offering import examine, load_only, swap
from tests.fixtures.servers import wait_for
from tests.fixtures.verifying import verify

if TYPE_CHECKING:
    from collections.abc import Callable

    import psycopg

    from tests.fixtures.pooled import PooledFleet
    from tests.fixtures.servers import PgServer

healthy_databases = fixtures.healthy_databases
offering = fixtures.offering


@pytest.fixture
def fleet(offering: PooledFleet) -> PooledFleet:
    """Give a fleet whose pooler is as it should be."""
    return offering


def test_connections_that_stay_on_the_old_node_are_examine(fleet: PooledFleet) -> None:
    pooler = fleet.pg_bouncer
    pooler.databases_file.write_text(swap(fleet, pooler.databases_file.read_text()))
    pooler.admin("RELOAD")
    clients = [pooler.connect(f"shard{n}", autocommit=False) for n in (2, 3, 6)]
    try:
        for client in clients:
            client.execute("SELECT 1")
        pooler.databases_file.write_text(swap(fleet, pooler.databases_file.read_text()))
        pooler.admin("RELOAD")
        with pooler.connect("shard2") as another:  # rightly led beside the one left over
            another.execute("SELECT 1")
        findings = examine(fleet)
        assert [(f.code, f.actual, f.shards, f.object) for f in findings] == [
            ("wrong_server", "connections to node b", (2, 3), "shard2, shard3"),
            ("wrong_server", "connections to node a", (6,), "shard6"),
        ]
        assert "node a, which owns the shards" in findings[0].expected
    finally:
        for client in clients:
            client.close()
    wait_for(lambda: examine(fleet) == [])


def test_connections_to_a_server_that_is_gone_from_the_topology_are_found(
    fleet: PooledFleet, two_servers: dict[str, PgServer]
) -> None:
    pooler, gone = fleet.pg_bouncer, two_servers["a"].port
    right = pooler.databases_file.read_text()
    before = rf"shard2 = host=127.0.0.1 port={gone} dbname=postgres"
    pooler.databases_file.write_text(re.sub("(?m)^shard2 .*$", before, right))
    pooler.admin("RELOAD")
    with pooler.connect("shard2", autocommit=False) as client:
        client.execute("SELECT 1")
        pooler.databases_file.write_text(right)
        pooler.admin("RELOAD")
        [finding] = examine(fleet)
    assert (finding.code, finding.shards) == ("wrong_server", (2,))
    assert finding.actual == f"connections to 127.0.0.1:{gone}"
    assert "node a" in finding.expected


def test_a_name_of_a_host_is_compared_by_its_addresses(fleet: PooledFleet) -> None:
    pooler = fleet.pg_bouncer
    text = fleet.write().read_text().replace(", shards: '", ", pooler_host: localhost, shards: '")
    fleet.file.write_text(text)
    topology = loader.load(fleet.file)
    rendered = render.databases(topology, topology.poolers[pooler.pooler.name], 1)
    assert rendered.count("host=localhost") == 10
    pooler.databases_file.write_text(rendered)
    pooler.admin("RELOAD")
    with pooler.connect("shard2") as client, pooler.connect("shard6", autocommit=False) as other:
        client.execute("SELECT 1")
        other.execute("SELECT 1")
        assert examine(fleet, text) == []
        pooler.databases_file.write_text(swap(fleet, rendered))
        pooler.admin("RELOAD")
        pooler.databases_file.write_text(rendered)
        with pooler.connect("shard2", autocommit=False) as astray:
            astray.execute("SELECT 1")
            pooler.admin("RELOAD")
            [finding] = examine(fleet, text)
    assert (finding.code, finding.actual) == ("wrong_server", "connections to node b")


def test_an_old_topology_is_not_the_poolers_fault(fleet: PooledFleet) -> None:
    with fleet.pg_bouncer.connect("shard2") as client, fleet.pg_bouncer.connect("shard6") as other:
        client.execute("SELECT 1")
        other.execute("SELECT 1")
        old = fleet.write().read_text().replace("'0-3'", "'0-4'").replace("'4-7'", "'5-7'")
        assert {f.check for f in examine(fleet, old)} == {"map"}


def test_one_nodes_wrong_map_is_not_the_poolers_fault(fleet: PooledFleet) -> None:
    fleet.execute("a", "UPDATE shardctl.map SET node = 'b' WHERE shard = 2")
    try:
        assert [f.code for f in examine(fleet)] == ["map_differs"]
    finally:
        fleet.execute("a", "UPDATE shardctl.map SET node = 'a' WHERE shard = 2")


def test_when_no_node_tells_the_map_the_files_are_not_said_to_differ(fleet: PooledFleet) -> None:
    fleet.pg_bouncer.admin("PAUSE shard2")
    text = fleet.write().read_text()
    nowhere = r"  \1: {host: 127.0.0.2, pooler_host: 127.0.0.1, "
    text = re.sub(r"(?m)^  ([ab]): \{host: 127.0.0.1, ", nowhere, text)
    assert [f.code for f in examine(fleet, text)] == ["unreachable", "unreachable", "paused"]


@pytest.fixture
def large(fleet: PooledFleet) -> PooledFleet:
    """Give a pooler that offers the aliases of 2,000 shards; the databases have 8 of them."""
    made = dataclasses.replace(fleet, count=2000, shards={"a": "0-999", "b": "1000-1999"})
    fixtures.load(made, made.pg_bouncer)
    return made


def empty_file(fleet: PooledFleet) -> None:
    fleet.pg_bouncer.databases_file.write_text("")


def pause_all(fleet: PooledFleet) -> None:
    with fleet.pg_bouncer.console() as console:
        for number in range(fleet.count):
            console.pause(f"shard{number}", seconds=10)


def stay_on_the_old_nodes(fleet: PooledFleet) -> list[psycopg.Connection[Any]]:
    """Leave transactions of some aliases where their nodes no longer own the shards."""
    pooler = fleet.pg_bouncer
    right = pooler.databases_file.read_text()
    pooler.databases_file.write_text(swap(fleet, right))
    pooler.admin("RELOAD")
    clients = [pooler.connect(f"shard{n}", autocommit=False) for n in range(0, 2000, 100)]
    for client in clients:
        client.execute("SELECT 1")
    pooler.databases_file.write_text(right)
    pooler.admin("RELOAD")
    return clients


ALL_2000 = tuple(range(2000))
OF_MANY: dict[str, tuple[Callable[[PooledFleet], Any], list[tuple[str, tuple[int, ...]]]]] = {
    "nothing": (lambda _: None, []),
    "an empty file": (empty_file, [("file_differs", ())]),
    "nothing loaded": (lambda fleet: load_only(fleet.pg_bouncer, ""), [("not_loaded", ALL_2000)]),
    "all paused one by one": (pause_all, [("paused", ALL_2000)]),
    "connections to the wrong nodes": (
        stay_on_the_old_nodes,
        [("wrong_server", tuple(range(0, 1000, 100))),
         ("wrong_server", tuple(range(1000, 2000, 100)))],
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", OF_MANY)
def test_a_fault_of_2000_aliases_is_one_finding(large: PooledFleet, fault: str) -> None:
    breaks, expected = OF_MANY[fault]
    left = breaks(large)
    findings = [f for f in verify(large, "poolers") if f.check == "poolers"]
    for client in left or ():
        client.close()
    kept = [f for f in findings if f.code != "no_prepared_statements"]
    assert [(f.code, f.shards) for f in kept] == expected
    assert all(len(f.object or "") < 200 for f in kept)
