"""A topology file as applications read it: what shardctl reads of it, and its mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardctl.router import places
from shardctl.state.map import Map
from shardctl.topology import brief, loader
from shardctl.topology.problems import TopologyInvalid, TopologyMissing

ROOT = Path(__file__).parents[3]

SMALL = """
cluster: app
shards: {count: 4}
database: {name: app}
nodes:
  a: {host: db1, port: 5432, shards: 0-2}
  b: {host: "::1", port: "5433", shards: 3}
"""
WHOLE = """
cluster: app
shards: {count: 4, schema: "s{id:03d}"}
id: {epoch: 2020-01-01, tick: 10ms, bits: {time: 40, shard: 12, sequence: 11}, generator: classic}
database:
  name: app
  user: owner
  app_roles: [web, "worker %"]
  migrations: migrations
  options: {sslmode: verify-full, connect_timeout: 3}
nodes:
  a: {host: db1, port: 5432, shards: "0,2", data_directory: /data/a, ssh: {user: ops}}
  b: {host: db2, port: 5432, shards: "1,3", settings: {work_mem: 8MB}}
  c: {host: db3, port: 5432, shards: none}
poolers:
  p1: {host: p1, port: 6432, config: /etc/pgbouncer.ini, aliases: [shard, node]}
  p2: {host: p2, port: 6432, config: p2.ini}
move: {max_pause: 2s}
"""


@pytest.mark.parametrize("text", [SMALL, WHOLE, (ROOT / "topology.yaml").read_text()])
def test_it_gives_an_application_what_the_whole_file_does(tmp_path: Path, text: str) -> None:
    file = tmp_path / "topology.yaml"
    file.write_text(text)
    ours, whole = brief.load(file), loader.load(file)
    assert Map.of(ours) == Map.of(whole)
    for through in ("nodes", "poolers") if whole.poolers else ("nodes",):
        found = [places.of_topology(one, through, {}) for one in (ours, whole)]
        assert found[0] == found[1]


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("cluster: app", "", "cluster: missing"),
        ("{count: 4}", "{count: many}", "3:17: shards.count: "),
        ("name: app}", "name: ''}", "4:18: database.name"),
        ("0-2", "0-1", "nodes: not every shard from 0 to 3 is on exactly one node"),
        ("0-2", "0-3", "nodes: not every shard from 0 to 3 is on exactly one node"),
        ("0-2", "2-0", "6:38: nodes.a.shards: 2-0 is in the wrong order"),
        ("port: 5432", "port: 0", "nodes.a.port: "),
        ("host: db1,", "", "nodes.a.host: missing"),
        ("nodes:", "nodes: 5\nx:", "nodes: expected keys and values"),
        ("nodes:", "poolers: {p: {host: p, port: 1, config: x, aliases: [x]}}\nnodes:", "aliases"),
        ("nodes:", "id: {tick: 0s}\nnodes:", "id.tick"),
        ("nodes:", "id: [1]\nnodes:", "id: expected keys and values"),
        ("{name: app}", "{name: app, app_roles: web}", "database.app_roles: expected a list"),
        ("cluster: app", "{", ":"),
        (SMALL, "", "the file is empty"),
        (SMALL, "5", "expected keys and values at the top level"),
    ],
)
def test_what_it_cannot_use_is_refused_with_its_place(
    tmp_path: Path, old: str, new: str, told: str
) -> None:
    file = tmp_path / "topology.yaml"
    file.write_text(SMALL.replace(old, new))
    with pytest.raises(TopologyInvalid) as raised:
        brief.load(file)
    assert told in str(raised.value)


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(TopologyMissing, match=r"none\.yaml: no such file"):
        brief.load(tmp_path / "none.yaml")
