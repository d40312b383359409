"""A saved plan that was edited or damaged is refused before anything begins."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from shardctl.balance import group
from shardctl.balance.group import GroupPlan, NodeThen, PlannedMove
from shardctl.errors import Misused, Refused
from shardctl.topology import loader

if TYPE_CHECKING:
    from pathlib import Path

MOVE = PlannedMove("a", "b", (0, 1), 8192, 1.0, 26.0, "node a is full")
PLAN = GroupPlan(
    1,
    "photos",
    "size",
    None,
    (
        NodeThen("a", "127.0.0.1", 5001, (0, 1, 2), drained=False),
        NodeThen("b", "127.0.0.1", 5002, (3,), drained=False),
    ),
    (),
    (MOVE,),
    (),
    0,
    (),
)
TOPOLOGY = """
cluster: photos
shards: {count: 4}
database: {name: app}
nodes:
  a: {host: 127.0.0.1, port: 5001, shards: 0-2}
  b: {host: 127.0.0.1, port: 5002, shards: 3}
"""


def saved(directory: Path, move: dict[str, Any], **of_plan: Any) -> Path:
    file = directory / "plan.json"
    plan = PLAN.as_json() | {"moves": [PLAN.as_json()["moves"][0] | move]} | of_plan
    file.write_text(json.dumps(plan), encoding="utf-8")
    return file


@pytest.mark.parametrize(
    "move",
    [
        {"predicted_copy_s": float("inf")},
        {"predicted_pause_ms": float("nan")},
        {"size_bytes": -1},
        {"size_bytes": 10**400},
        {"shards": [-1]},
        {"shards": [0, 0]},
        {"shards": []},
        {"why": "a\0b"},
        {"why": "\x1b[2Jall is well"},
        {"target": "b\nc"},
    ],
)
def test_values_that_no_plan_has(tmp_path: Path, move: dict[str, Any]) -> None:
    assert group.read(saved(tmp_path, {})) == PLAN
    with pytest.raises(Misused) as refused:
        group.read(saved(tmp_path, move))
    assert refused.value.code == "plan_unreadable"
    assert "\x1b" not in str(refused.value)


def test_a_shard_in_two_moves(tmp_path: Path) -> None:
    moves = [PLAN.as_json()["moves"][0]] * 2
    with pytest.raises(Misused, match="it moves shards 0-1 more than once"):
        group.read(saved(tmp_path, {}, moves=moves))


def test_a_file_that_is_too_large_is_not_read_into_memory(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    with file.open("wb") as sparse:
        sparse.truncate(1 << 40)
    with pytest.raises(Misused, match="larger than 64 MB"):
        group.read(file)


@pytest.mark.parametrize(
    ("move", "why"),
    [
        ({"target": "z"}, "move 1 gives shards to node z, which is not in the topology"),
        ({"target": "a"}, "move 1 gives node a its own shards"),
        ({"source": "b", "target": "a"}, "move 1 takes shards 0-1, which node b lacks"),
    ],
)
def test_moves_that_cannot_be_made(tmp_path: Path, move: dict[str, Any], why: str) -> None:
    topology = tmp_path / "topology.yaml"
    topology.write_text(TOPOLOGY, encoding="utf-8")
    with pytest.raises(Refused, match=why):
        group.require_same(group.read(saved(tmp_path, move)), loader.load(topology), ())


def test_a_drained_node_gets_no_shards(tmp_path: Path) -> None:
    topology = tmp_path / "topology.yaml"
    topology.write_text(TOPOLOGY, encoding="utf-8")
    drained = replace(PLAN, fleet=(PLAN.fleet[0], replace(PLAN.fleet[1], drained=True)))
    with pytest.raises(Refused, match="move 1 gives shards to node b, which is drained"):
        group.require_same(drained, loader.load(topology), {"b"})
