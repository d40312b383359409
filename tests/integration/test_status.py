"""`status` against real servers: what it says is what is there."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from shardctl.checks.status import State, observe
from shardctl.fanout import Silent
from tests.fixtures.servers.postgres import free_ports

if TYPE_CHECKING:
    from shardctl.checks.status import NodeStatus
    from tests.fixtures.fleets.fleet import Fleet


def look(one: Fleet, *, sample_s: float = 0) -> dict[str, NodeStatus]:
    seen = observe(one.topology(), sample_s=sample_s, progress=Silent())
    return {node.name: node for node in seen.nodes}


def states(line: str) -> dict[str, str]:
    return {node["name"]: node["state"] for node in json.loads(line)["nodes"]}


def test_a_healthy_fleet_is_told_as_it_is(fleet_8: Fleet) -> None:
    seen = observe(fleet_8.topology(), sample_s=0, progress=Silent())
    version = fleet_8.query("a", "SHOW server_version")[0][0].split()[0]
    [(map_version,)] = fleet_8.query("a", "SELECT map_version FROM shardctl.cluster")
    assert abs((datetime.now(UTC) - seen.time).total_seconds()) < 30
    assert (seen.cluster, seen.map_version) == ("test", map_version)
    for node, shards in zip(seen.nodes, (range(4), range(4, 8)), strict=True):
        assert (node.state, node.role, node.version) == ("up", "primary", version)
        assert (node.owned, tuple(node.sizes)) == (tuple(shards), tuple(shards))
        assert node.error is None
        assert node.uptime_s is not None
        assert node.uptime_s >= 0
        [(size,)] = fleet_8.query(node.name, "SELECT pg_database_size(current_database())")
        assert node.size_bytes == pytest.approx(size, rel=0.02)
        assert (node.tps, node.disk_error, node.retired) == (None, None, ())


def test_a_locked_table_is_not_waited_for_and_the_other_shards_are_measured(
    fleet_8: Fleet,
) -> None:
    with fleet_8.connect("a", autocommit=False) as holder:
        holder.execute("LOCK TABLE shard2.photos IN ACCESS EXCLUSIVE MODE")
        node = look(fleet_8)["a"]
        assert node.state is State.up
        assert [shard for shard, size in node.sizes.items() if size is None] == [2]
    assert None not in look(fleet_8)["a"].sizes.values()


def test_a_node_that_is_down_is_a_row_and_the_others_are_told(fleet_8: Fleet) -> None:
    with fleet_8.at_ports(b=free_ports(1)[0]):
        seen = look(fleet_8, sample_s=0.01)
        done = fleet_8.here("status", "--sample", "0")
        as_json = fleet_8.here("status", "--sample", "0", "-o", "json")
    assert (seen["a"].state, seen["b"].state) == ("up", "down")
    assert seen["a"].tps is not None
    assert seen["b"].owned == (4, 5, 6, 7)
    assert "refused" in (seen["b"].error or "")
    assert (done.returncode, as_json.returncode) == (1, 1)
    assert any(line.split()[:2] == ["b", "down"] for line in done.stdout.splitlines())
    assert "4-7" in done.stderr
    assert states(as_json.stdout) == {"a": "up", "b": "down"}
