"""What the checks `map` and `identity` make of what nodes say, without a server."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from shardctl.topology.model import NodeName, ShardId
from tests.fixtures.fleets.facts import A, B, empty_schema, healthy
from tests.fixtures.fleets.verify import told


@pytest.mark.parametrize(
    ("schemas", "severity", "finding"),
    [
        ({A: {"shard3": None}}, "error", ("shard_missing", "a", (3,), None)),
        ({B: {"shard2": True}}, "error", ("shard_twice", "b", (2,), None)),
        ({A: {"shard2": None}, B: {"shard2": True}}, "error",
         ("shard_misplaced", "b", (2,), None)),
    ],
)  # fmt: skip
def test_schemas_are_compared_with_the_map(
    schemas: dict[NodeName, Any], severity: str, finding: tuple[object, ...]
) -> None:
    seen = healthy()
    for node, there in schemas.items():
        seen.schemas(node, **{name: live and empty_schema() for name, live in there.items()})
    [found] = seen.findings("map")
    assert told([found]) == [("map", *finding)]
    assert found.severity.value == severity


def test_a_maps_row_of_another_node_is_told_of_the_node_that_says_so() -> None:
    seen = healthy()
    seen.basics(B, map={**seen.topology.owners(), ShardId(2): B})
    assert told(seen.findings()) == [("map", "map_differs", "b", (2,), None)]


def test_an_older_map_and_a_table_behind_the_shards_are_told_by_node() -> None:
    seen = healthy()
    seen.row(B, map_version=2)
    seen.basics(A, shadows=(("public", "photos"),))
    assert told(seen.findings()) == [
        ("map", "map_version", "a", (), "shardctl.map"),
        ("map", "table_shadowed", "a", (), "public.photos"),
    ]


@pytest.mark.parametrize("names", [(), ("clock",)])
def test_a_wrong_cluster_is_told_once(names: tuple[str, ...]) -> None:
    seen = healthy()
    for node in (A, B):
        seen.row(node, cluster="other")
        seen.looked[node] = dataclasses.replace(seen.looked[node], seen={})
    (finding,) = seen.findings(*names)
    assert (finding.code, finding.node, finding.object) == ("other_node", None, "cluster")
