"""What `status` makes of what it saw, without a server."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from shardctl.access.read_only import Mark
from shardctl.checks.status import Status, _rate, _Sample, observe
from shardctl.checks.status_look import (
    Disk,
    NodeStatus,
    Retired,
    Slot,
    Standby,
    State,
    _retired,
    measure,
)
from shardctl.cli.status import title
from shardctl.fanout import Silent
from shardctl.hosts import files
from shardctl.hosts.local import Local
from shardctl.topology import names
from shardctl.topology.model import NodeName, ShardId
from tests.fixtures.refusals import raises_code
from tests.fixtures.servers.postgres import free_ports, local_node, local_topology

if TYPE_CHECKING:
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


def test_the_fleets_map_version_is_the_newest_that_a_node_tells() -> None:
    nodes = [NodeStatus(A, State.up, (), map_version=v) for v in (None, 4, 3)]
    assert Status("photos", NOW, tuple(nodes)).map_version == 4
    assert Status("photos", NOW, (nodes[0],)).map_version is None


def test_the_rate_goes_by_the_time_that_really_passed() -> None:
    assert _rate(_Sample(1.0, 10), _Sample(1.5, 60)) == 100.0
    assert _rate(_Sample(1.0, 10), _Sample(1.0, 10)) is None


def test_statistics_that_were_reset_give_no_rate() -> None:
    assert _rate(_Sample(1.0, 10), _Sample(2.0, 5)) is None


def test_nodes_that_are_not_there_are_down_or_absent(tmp_path: Path) -> None:
    first, second = free_ports(2)
    topology = local_topology(
        tmp_path,
        local_node(tmp_path, "a", first, range(2)),
        local_node(tmp_path, "b", second, range(0)),
    )
    seen = observe(topology, sample_s=60, progress=Silent())  # nobody to sample: no wait
    assert [(n.name, n.state) for n in seen.nodes] == [("a", "down"), ("b", "absent")]
    assert all("refused" in (n.error or "") for n in seen.nodes)
    assert seen.map_version is None
    assert title(seen).startswith("cluster test, map unknown, ")


def test_what_df_prints_instead_of_numbers_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "df"
    program.write_text("#!/bin/sh\necho df: not today\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with raises_code("disk_unknown", match="df: not today"):
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


def test_a_disk_that_is_not_there_says_why(tmp_path: Path) -> None:
    there = local_node(tmp_path, "a", 1, range(1), data_directory=Path("/nowhere/at/all"))
    with raises_code("disk_unknown", match="/nowhere/at/all: No such file or directory"):
        measure(there)
    assert measure(local_node(tmp_path, "a", 1, range(1), data_directory=None)) is None


def test_retired_schemas_are_told_with_their_shard_and_move(
    tmp_path: Path,
) -> None:
    topology = local_topology(tmp_path, local_node(tmp_path, "a", 1, range(8)))
    mine = names.retired("shard7", "5f3a9c1e")
    sizes = {mine: 10, "other__retired_0badcafe": None}
    assert _retired(topology, sizes) == (
        Retired(mine, ShardId(7), "5f3a9c1e", 10),
        Retired("other__retired_0badcafe", None, "0badcafe", None),
    )
