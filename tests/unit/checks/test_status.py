"""What `status` makes of what it saw, without a server."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from shardctl.access.read_only import Mark
from shardctl.checks.status import Status
from shardctl.checks.status_look import (
    Disk,
    NodeStatus,
    Retired,
    Slot,
    Standby,
    State,
)
from shardctl.hosts import files
from shardctl.hosts.local import Local
from shardctl.topology.model import NodeName, ShardId
from tests.fixtures.refusals import raises_code

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

NOW = datetime(2026, 11, 21, 7, 58, 16, 420_999, tzinfo=UTC)
A, B = NodeName("a"), NodeName("b")


def test_the_json_has_everything_and_in_the_contracts_units() -> None:
    node = NodeStatus(
        name=A,
        state=State.up,
        owned=(ShardId(0), ShardId(1)),
        role="primary",
        version="15.20",
        uptime_s=9.9,
        map_version=3,
        sizes={ShardId(1): 8192},
        read_only={ShardId(1): Mark(NOW, "ann@ops1", tables=3, refusing=2)},
        retired=(Retired("shard2__retired_5f3a9c1e", ShardId(2), "5f3a9c1e", 24576),),
        size_bytes=10,
        rows=7,
        sessions=3,
        idle_in_transaction=1,
        tps=12.04,
        slots=(Slot("s", "physical", active=False, wal_status="reserved", retained_bytes=16),),
        standbys=(Standby("c", "streaming", 0, None),),
        disk=Disk(free_bytes=1, total_bytes=2),
    )
    assert Status("photos", NOW, (node,)).as_json() == {
        "format": 1,
        "cluster": "photos",
        "time": "2026-11-21T07:58:16.420Z",
        "map_version": 3,
        "nodes": [
            {
                "name": "a",
                "state": "up",
                "role": "primary",
                "version": "15.20",
                "uptime_s": 9,
                "map_version": 3,
                "owned": [0, 1],
                "shards": [1],
                "shard_sizes_bytes": {"1": 8192},
                "read_only": [
                    {
                        "shards": [1],
                        "complete": False,
                        "since": "2026-11-21T07:58:16.420Z",
                        "by": "ann@ops1",
                    }
                ],
                "retired": [
                    {
                        "schema": "shard2__retired_5f3a9c1e",
                        "shard": 2,
                        "move": "5f3a9c1e",
                        "size_bytes": 24576,
                        "ended": None,
                        "due": None,
                    }
                ],
                "size_bytes": 10,
                "rows_estimate": 7,
                "sessions": 3,
                "idle_in_transaction": 1,
                "tps": 12.0,
                "slots": [
                    {
                        "name": "s",
                        "type": "physical",
                        "active": False,
                        "wal_status": "reserved",
                        "retained_bytes": 16,
                        "lag_bytes": None,
                    }
                ],
                "standbys": [{"name": "c", "state": "streaming", "lag_bytes": 0, "lag_s": None}],
                "disk_free_bytes": 1,
                "disk_total_bytes": 2,
                "disk_error": None,
                "error": None,
            }
        ],
        "poolers": [],
        "moves": [],
    }


def test_a_node_that_is_down_has_the_same_keys_and_no_values() -> None:
    up = NodeStatus(A, State.up, ()).as_json()
    down = NodeStatus(A, State.down, (ShardId(0),), error="refused").as_json()
    assert list(down) == list(up)
    known = {key for key, value in down.items() if value not in (None, [], {})}
    assert known == {"name", "state", "owned", "error"}


def test_what_df_prints_instead_of_numbers_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "df"
    program.write_text("#!/bin/sh\necho df: not today\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with raises_code("disk_unknown"):
        files.disk(Local(), "/")


def test_a_device_with_a_space_in_its_name_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "df"
    program.write_text(
        "#!/bin/sh\n"
        "echo 'Filesystem 1024-blocks Used Available Capacity Mounted on'\n"
        "echo '//nas/a share 1000 400 600 40% /mnt/a b'\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert files.disk(Local(), "/mnt/a b") == (1000 * 1024, 600 * 1024)
