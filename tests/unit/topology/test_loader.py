"""The loader: what a good file gives."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from shardctl.topology import loader
from shardctl.topology.loader import TopologyMissing, load, parse
from shardctl.topology.model import Control, NodeName, PoolerName, ShardId, Ssh, Topology

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


def test_the_example_at_the_root_is_read() -> None:
    topology = load(EXAMPLE)
    assert topology.cluster == "photos"
    assert topology.shard_count == 8
    assert topology.schema(ShardId(7)) == "shard7"
    assert topology.id.epoch_ms == 1314220021721
    assert topology.nodes[NodeName("b")].shards == (4, 5, 6, 7)
    assert topology.nodes[NodeName("c")].shards == ()
    assert topology.nodes[NodeName("a")].data_directory == ROOT / ".sandbox/a"
    assert topology.database.migrations == ROOT / "migrations"
    assert topology.poolers[PoolerName("p1")].aliases == ("shard", "node")


def test_what_is_left_out_has_its_default() -> None:
    topology = read(SMALL + "poolers: {p: {host: h, port: 2, config: p.ini}}\n")
    assert (topology.id.epoch_ms, topology.id.tick_ms) == (1314220021721, 1)
    bits = (topology.id.time_bits, topology.id.shard_bits, topology.id.sequence_bits)
    assert bits == (41, 13, 10)
    assert topology.id.generator == "strict"
    assert str(topology.schema_pattern) == "shard{id}"
    assert topology.database.user == topology.database.replication_user == "postgres"
    assert topology.database.app_roles == ()
    assert topology.database.migrations is None
    assert topology.move.max_pause == timedelta(seconds=5)
    assert topology.move.retain == timedelta(hours=24)
    assert topology.move.clone_with is None
    pooler = topology.poolers[PoolerName("p")]
    assert (pooler.admin_user, pooler.aliases) == ("postgres", ("node",))
    assert pooler.config == Path("/etc/fleet/p.ini")
    assert topology.nodes[NodeName("a")].pooler_host == "h"


def test_an_optional_key_without_a_value_counts_as_left_out() -> None:
    topology = read(SMALL + "id:\npoolers:\nmove: {retain: ~}\n")
    assert topology.poolers == {}
    assert topology.move.retain == timedelta(hours=24)


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


def test_a_node_may_be_named_after_passwords() -> None:
    assert read(SMALL.replace("  a:", "  password-db:")).nodes
    more = "0-1, settings: {password_encryption: scram-sha-256}}"
    assert read(SMALL.replace("0-1}", more)).nodes


def test_a_missing_file_says_how_to_name_or_make_one(tmp_path: Path) -> None:
    with pytest.raises(TopologyMissing) as refused:
        load(tmp_path / "topology.yaml")
    for way in ("--topology", "$SHARDCTL_TOPOLOGY", "shardctl sandbox new"):
        assert way in refused.value.hint
    assert refused.value.exit_code == 2


def test_the_model_and_its_helpers_load_neither_pydantic_nor_yaml() -> None:
    code = (
        "import sys; from shardctl.topology import model, names, ranges, keys, problems;"
        " sys.exit(bool({'pydantic', 'yaml'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


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


def test_a_table_with_keys_may_be_named_after_passwords() -> None:
    keys = SMALL.replace("{name: app}", "{name: app, keys: {password_resets: user_id}}")
    assert read(keys).database.keys == {"password_resets": "user_id"}
