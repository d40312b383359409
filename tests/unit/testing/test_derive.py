"""The topology of a test fleet, made of an application's."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shardctl.testing import derive
from shardctl.topology import loader

if TYPE_CHECKING:
    from shardctl.topology.model import Topology

OWN = """
cluster: "yes: 1"
shards: {count: 2000, schema: "u{id:04d}"}
id: {epoch: 2020-01-01, bits: {time: 40, shard: 12, sequence: 11}, tick: 2ms, generator: classic}
database:
  name: "null"
  user: boss
  app_roles: [web, "off"]
  replication_user: copy
  migrations: ../db migrations
  keys: {photos: user_id}
  options: {sslmode: require}
nodes:
  one: {host: 10.0.0.1, port: 5432, shards: "0-999,1001", ssh: {host: db1}, os_user: postgres}
  two: {host: 10.0.0.2, port: 5432, shards: "1000,1002-1999"}
poolers:
  p: {host: 10.0.0.9, port: 6432, config: /etc/pgbouncer/pgbouncer.ini}
"""


@pytest.fixture
def own(tmp_path: Path) -> Topology:
    return loader.parse(OWN.encode(), tmp_path / "topology.yaml")


def derived(own: Topology, **options: object) -> Topology:
    place = Path("/srv/x y")
    given = {"directory": place, "shards": 5, "ports": [4001, 4002]} | options
    text = derive.render(own, **given)  # type: ignore[arg-type]  # the tests know the types
    return loader.parse(text.encode(), place / "topology.yaml")


def test_all_that_an_application_sees_is_the_same(own: Topology, tmp_path: Path) -> None:
    made = derived(own)
    assert (made.cluster, made.schema_pattern, made.id) == (own.cluster, own.schema_pattern, own.id)
    assert made.database == dataclasses.replace(own.database, options={})
    assert made.database.migrations == tmp_path.parent / "db migrations"


def test_the_nodes_are_of_this_machine_and_share_the_shards(own: Topology) -> None:
    made = derived(own)
    assert made.shard_count == 5
    assert [node.shards for node in made.nodes.values()] == [(0, 1, 2), (3, 4)]
    assert {(node.host, node.ssh, node.os_user) for node in made.nodes.values()} == {
        ("127.0.0.1", None, None)
    }
    assert [node.port for node in made.nodes.values()] == [4001, 4002]
    assert [str(node.data_directory) for node in made.nodes.values()] == [
        "/srv/x y/a",
        "/srv/x y/b",
    ]
    assert all(node.settings["fsync"] == "off" for node in made.nodes.values())
    assert not made.poolers


def test_an_application_without_migrations_has_none(own: Topology) -> None:
    without = dataclasses.replace(own.database, migrations=None)
    assert derived(dataclasses.replace(own, database=without)).database.migrations is None
