"""What the checks `map` and `identity` make of what nodes say, without a server."""

from __future__ import annotations

import dataclasses

import pytest

from shardctl.checks.check import Severity
from shardctl.topology.model import ShardId
from tests.fixtures.fleets.facts import A, B, Facts, empty_schema, healthy
from tests.fixtures.fleets.verify import told


def test_of_a_healthy_fleet_nothing_is_told() -> None:
    report = healthy().judge()
    assert report.findings == ()
    assert (report.nodes, report.shards, report.poolers) == (2, 8, 0)


def test_a_stray_schema_is_a_warning() -> None:
    seen = healthy()
    seen.schemas(A, shard8=empty_schema(), shard99=empty_schema())
    [finding] = seen.findings()
    assert told([finding]) == [("map", "stray_schema", "a", (), "shard8")]
    assert finding.severity is Severity.warning
    assert finding.actual == "schema shard8, shard99"


def test_a_schema_that_is_dropped_is_missed() -> None:
    seen = healthy()
    seen.schemas(A, shard3=None)
    [finding] = seen.findings("map")
    assert told([finding]) == [("map", "shard_missing", "a", (3,), None)]
    assert finding.severity is Severity.error
    assert (finding.actual, finding.expected) == ("no live schema", "a live schema on a")


@pytest.mark.parametrize(
    ("kept", "code", "actual"),
    [(True, "shard_twice", "live on b too"), (False, "shard_misplaced", "live on b only")],
)
def test_a_shard_on_another_node(kept: bool, code: str, actual: str) -> None:  # a case
    seen = healthy()
    seen.schemas(B, shard2=empty_schema())
    if not kept:
        seen.schemas(A, shard2=None)
    [finding] = seen.findings("map")
    assert told([finding]) == [("map", code, "b", (2,), None)]
    assert (finding.severity, finding.actual) == (Severity.error, actual)


def test_a_maps_row_of_another_node_is_told_of_the_node_that_says_so() -> None:
    seen = healthy()
    seen.basics(B, map={**seen.topology.owners(), ShardId(2): B})
    [finding] = seen.findings()
    assert told([finding]) == [("map", "map_differs", "b", (2,), None)]
    assert (finding.actual, finding.expected) == ("shardctl.map: node b", "the topology: node a")


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
    assert finding.actual == "nodes a, b are of cluster other"


def lacking(seen: Facts) -> None:
    """Let something be wrong that two checks tell."""
    seen.schemas(A, shard99=empty_schema())
    structure = seen.seen(A, "structure")
    seen.see(A, "structure", digests={**structure.digests, ShardId(1): "empty"},
             details={**structure.details, "empty": ()})  # fmt: skip


def test_only_the_chosen_checks_are_told() -> None:
    seen = healthy()
    lacking(seen)
    assert [f.code for f in seen.findings()] == ["stray_schema", "table_missing"]
    assert [f.code for f in seen.findings("map")] == ["stray_schema"]
    assert [f.code for f in seen.findings("structure")] == ["table_missing"]
