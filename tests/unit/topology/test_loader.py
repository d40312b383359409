"""The loader: what a good file gives."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from shardctl.ids.layout import Layout
from shardctl.topology import loader
from shardctl.topology.loader import TopologyMissing, load, parse
from shardctl.topology.model import Control, NodeName, PoolerName, Ssh, Topology

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "topology.yaml"
SMALL = """\
cluster: photos
shards: {count: 2}
database: {name: app}
nodes:
  a: {host: h, port: 1, shards: 0-1}
"""


def read(text: str) -> Topology:
    return parse(text.encode(), Path("/etc/fleet/topology.yaml"))


def test_what_is_left_out_has_its_default() -> None:
    topology = read(SMALL + "poolers: {p: {host: h, port: 2, config: p.ini}}\n")
    assert Layout.of(topology.id) == Layout()
    assert topology.id.generator == "strict"
    assert str(topology.schema_pattern) == "shard{id}"
    assert topology.database.user == topology.database.replication_user == "postgres"
    assert topology.move.max_pause == timedelta(seconds=5)
    assert topology.move.retain == timedelta(hours=24)
    pooler = topology.poolers[PoolerName("p")]
    assert (pooler.admin_user, pooler.aliases) == ("postgres", ("node",))
    assert topology.nodes[NodeName("a")].pooler_host == "h"


def test_scalars_keep_their_text_where_yaml_would_read_something_else() -> None:
    topology = read(
        SMALL.replace("  a:", "  on:").replace(
            "0-1}", "0-1, settings: {fsync: off, x: 010, y: 1:30, z: 2011-01-01, e: ''}}"
        )
    )
    node = topology.nodes[NodeName("on")]
    assert node.settings == {"fsync": "off", "x": "010", "y": "1:30", "z": "2011-01-01", "e": ""}


def test_ssh_and_control_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ops")
    ssh = "{host: x, port: 22, key_file: ~/.ssh/id, accept_new: yes}"
    more = f"0-1, ssh: {ssh}, control: {{start: a b}}}}"
    node = read(SMALL.replace("0-1}", more)).nodes[NodeName("a")]
    assert node.ssh == Ssh("x", None, 22, Path("/home/ops/.ssh/id"), accept_new=True)
    assert node.control == Control("a b", None, None, None)


def typed() -> dict[str, Any]:
    """Read the example as an editor does: typed, and times as text."""
    data: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    data["id"]["epoch"] = "2011-08-24T21:07:01.721Z"
    return data


def test_the_json_schema_is_one_and_accepts_the_example() -> None:
    schema = loader.json_schema()
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(typed())


def test_a_missing_file_says_how_to_name_or_make_one(tmp_path: Path) -> None:
    with pytest.raises(TopologyMissing) as refused:
        load(tmp_path / "topology.yaml")
    for way in ("--topology", "$SHARDCTL_TOPOLOGY", "shardctl sandbox new"):
        assert way in refused.value.hint
    assert refused.value.exit_code == 2
