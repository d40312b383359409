"""The check `poolers`: connections left behind, names of hosts, thousands of aliases."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

import pytest

from shardctl.pgbouncer import render
from shardctl.topology import loader
from tests.fixtures.fleets.healthy import examine, load, load_only, swap
from tests.fixtures.fleets.verify import verify
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from tests.fixtures.fleets.pooled import PooledFleet
    from tests.fixtures.servers.postgres import PgServer


@pytest.fixture
def fleet(fleet_pooled_healthy: PooledFleet) -> PooledFleet:
    """Give a fleet whose pooler is as it should be."""
    return fleet_pooled_healthy


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


def test_2000_aliases_of_which_none_is_loaded_are_one_finding(fleet: PooledFleet) -> None:
    large = dataclasses.replace(fleet, count=2000, shards={"a": "0-999", "b": "1000-1999"})
    load(large, large.pg_bouncer)

    def found() -> list[tuple[str, tuple[int, ...]]]:
        findings = [f for f in verify(large, "poolers") if f.check == "poolers"]
        kept = [f for f in findings if f.code != "no_prepared_statements"]
        assert all(len(f.object or "") < 200 for f in kept)
        return [(f.code, f.shards) for f in kept]

    assert found() == []
    load_only(large.pg_bouncer, "")
    assert found() == [("not_loaded", tuple(range(2000)))]
