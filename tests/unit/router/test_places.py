"""Where nodes are: connection strings from a topology, or from what the first answer told."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from psycopg.conninfo import conninfo_to_dict

from shardctl.ids.layout import Layout
from shardctl.router import places
from shardctl.router.errors import NoNodeAliases
from shardctl.state.map import Map, NodeMap
from shardctl.topology.model import NodeName, Pooler, PoolerName
from shardctl.topology.names import SchemaPattern
from tests.fixtures.servers.postgres import local_node, local_topology

if TYPE_CHECKING:
    from pathlib import Path

    from shardctl.topology.model import Topology

A, B, C = map(NodeName, "abc")
TOLD = NodeMap(A, "app", Map(1, "test", SchemaPattern.parse("shard{id}"), Layout(), (A, B)))


@pytest.fixture
def topology(tmp_path: Path) -> Topology:
    nodes = [
        local_node(tmp_path, "a", 6101, range(4)),
        local_node(tmp_path, "b", 6102, range(4, 8)),
    ]
    return local_topology(tmp_path, *nodes, options={"sslmode": "prefer", "options": "-c jit=off"})


def pooler(name: str, port: int, *kinds: Any) -> Pooler:
    here: Any = None
    return Pooler(PoolerName(name), "127.0.0.1", port, here, here, "postgres", kinds, None, None)


def with_poolers(topology: Topology, *poolers: Pooler) -> Topology:
    return replace(topology, poolers={one.name: one for one in poolers})


def keywords(found: places.Places, node: str) -> dict[str, Any]:
    return conninfo_to_dict(found.conninfo(NodeName(node)))


def test_poolers_with_aliases_of_shards_alone_are_no_way(topology: Topology) -> None:
    shards = with_poolers(topology, pooler("p1", 6100, "shard"))
    with pytest.raises(NoNodeAliases):
        places.of_topology(shards, None, {})
    assert not places.of_topology(shards, "nodes", {}).pooled(A)


def test_the_way_to_one_node_is_not_taken_for_the_way_to_another() -> None:
    first = "host=db1 hostaddr=10.0.0.1 port=6000 password=secret passfile=/a dbname=app user=web"
    given = {"application_name": "web"}
    first_of = places.first_of(f"{first} sslmode=require", given)
    nodes = {"a": f"{first} sslmode=require", "b": "host=db2 connect_timeout=3", "c": "port=7000"}
    found = places.of_listed(places.Source(first_of, nodes, given), TOLD)
    shared = {"user": "web", "dbname": "app", "sslmode": "require", "application_name": "web"}
    b, c = keywords(found, "b"), keywords(found, "c")
    assert shared.items() <= b.items()
    assert shared.items() <= c.items()
    assert (b["host"], b["connect_timeout"], c["port"]) == ("db2", "3", "7000")
    assert not {"hostaddr", "port", "password", "passfile"} & b.keys()
    assert not {"host", "hostaddr", "password", "passfile"} & c.keys()
    assert {"password", "passfile", "hostaddr"} <= keywords(found, "a").keys()
    assert not any(found.pooled(node) for node in (A, B, C))


def test_a_node_behind_a_pooler_is_told_apart_by_its_own_connection_string() -> None:
    nodes = {"a": "host=db1", "b": "host=p1 dbname=app_b", "c": "service=third"}
    first_of = places.first_of("host=p1 dbname=app_a user=web", {})
    found = places.of_listed(places.Source(first_of, nodes, {}), TOLD)
    assert [found.pooled(node) for node in (A, B, C)] == [False, True, True]
    assert keywords(found, "a")["dbname"] == "app"
    # What a service says is not overruled.
    assert not {"dbname", "user", "host"} & keywords(found, "c").keys()
