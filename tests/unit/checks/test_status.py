"""What `status` makes of what it saw, without a server."""

from __future__ import annotations

from datetime import UTC, datetime
from unittest.mock import MagicMock

import pytest
from psycopg.errors import LockNotAvailable

from shardctl.access.read_only import Mark
from shardctl.checks.status import NodeStatus, Retired, State, Status, read_schemas
from shardctl.topology.model import NodeName, ShardId

NOW = datetime(2026, 11, 21, 7, 58, 16, 420_999, tzinfo=UTC)


def test_the_json_has_everything_and_in_the_contracts_units() -> None:
    node = NodeStatus(
        name=NodeName("a"),
        state=State.up,
        owned=(),
        uptime_s=9,
        read_only={ShardId(1): Mark(NOW, "ann@ops1", tables=3, refusing=2)},
        retired=(Retired("shard2__retired_5f3a9c1e", ShardId(2), "5f3a9c1e", 24576),),
        tps=12.0,
    )
    told = Status("photos", NOW, (node,)).as_json()
    assert list(told) == ["format", "cluster", "time", "map_version", "nodes", "poolers", "moves"]
    assert (told["format"], told["time"]) == (1, "2026-11-21T07:58:16.420Z")
    [of_node] = told["nodes"]
    assert sorted(of_node) == sorted([
        "name", "state", "role", "version", "uptime_s", "map_version", "owned", "shards",
        "shard_sizes_bytes", "read_only", "retired", "size_bytes", "rows_estimate", "sessions",
        "idle_in_transaction", "tps", "slots", "standbys", "disk_free_bytes", "disk_total_bytes",
        "disk_error", "error",
    ])  # fmt: skip
    assert (of_node["uptime_s"], of_node["tps"]) == (9, 12.0)
    assert of_node["read_only"][0]["complete"] is False
    assert list(of_node["retired"][0]) == ["schema", "shard", "move", "size_bytes", "ended", "due"]


def test_a_lock_that_comes_while_shards_are_measured_is_met_by_trying_again() -> None:
    late = LockNotAvailable()
    session = MagicMock()
    session.execute.side_effect = [late, late, [("shard1", 24576, 7)]]
    assert read_schemas(session, ["shard1"]) == {"shard1": (24576, 7)}
    session.execute.side_effect = [late, late, late]
    with pytest.raises(LockNotAvailable):
        read_schemas(session, ["shard1"])
