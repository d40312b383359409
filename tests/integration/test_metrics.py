"""`metrics`: figures of real nodes, poolers and journals."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING

from shardctl.state.journal import MoveState
from tests.fixtures.fleets.retired import ID
from tests.fixtures.servers.postgres import free_ports

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.fleets.fleet import Fleet
    from tests.fixtures.fleets.pooled import PooledFleet
    from tests.fixtures.fleets.retired import Pruned

SLOT = f"shardctl_{ID}"


def figures(fleet: Fleet) -> dict[str, float]:
    """Give the value of each line, by its name and labels without those of every line."""
    done = fleet.here("metrics")
    assert (done.returncode, done.stderr) == (0, "")
    return read(done.stdout)


def read(text: str) -> dict[str, float]:
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            found[name.replace('cluster="test",', "").replace('{cluster="test"}', "")] = float(
                value
            )
    return found


def test_figures_of_nodes_and_of_what_a_move_has_retired(fleet_retired: Pruned) -> None:
    fleet = fleet_retired.fleet
    fleet_retired.retire(2, rows=100)
    fleet_retired.record(retain_s=3600)
    found = figures(fleet)
    [(size,)] = fleet.query("a", "SELECT pg_database_size(current_database())")
    assert found['shardctl_node_up{node="a"}'] == found['shardctl_node_up{node="b"}'] == 1
    assert abs(found['shardctl_node_database_bytes{node="a"}'] - size) < size / 20
    assert found['shardctl_node_map_version{node="a"}'] == found["shardctl_map_version"]
    assert found['shardctl_moves{state="done"}'] == 1
    of_move = f'{{node="a",move="{ID}"}}'
    assert found[f"shardctl_retired_schemas{of_move}"] == 1
    assert found[f"shardctl_retired_bytes{of_move}"] > 8192
    [(ended,)] = fleet.query("a", "SELECT ended FROM shardctl.move")
    due = (ended + timedelta(seconds=3600)).timestamp()
    assert abs(found[f"shardctl_retired_due_timestamp_seconds{of_move}"] - due) < 0.01
    with fleet.at_ports(b=free_ports(1)[0]):
        found = figures(fleet)
        assert not [name for name in found if "verify" in name]
        assert fleet.here("verify").returncode == 1
        verified = figures(fleet)
    assert (found['shardctl_node_up{node="a"}'], found['shardctl_node_up{node="b"}']) == (1, 0)
    assert verified['shardctl_verify_findings{check="connection",severity="error"}'] == 1
    assert abs(time.time() - verified["shardctl_verify_timestamp_seconds"]) < 3600


def test_figures_of_an_open_move_and_the_wal_that_is_kept_for_it(fleet_retired: Pruned) -> None:
    fleet = fleet_retired.fleet
    fleet_retired.record(MoveState.reserved, proof=None)
    fleet.execute("a", f"SELECT pg_create_physical_replication_slot('{SLOT}', true)")
    try:
        found = figures(fleet)
    finally:
        fleet.execute("a", f"SELECT pg_drop_replication_slot('{SLOT}')")
    labels = f'{{move="{ID}",state="unfinished",method="clone",source="a",target="b"}}'
    [(started,)] = fleet.query("a", "SELECT started FROM shardctl.move")
    assert found['shardctl_moves{state="unfinished"}'] == 1
    assert abs(found[f"shardctl_move_start_timestamp_seconds{labels}"] - started.timestamp()) < 0.01
    assert found[f"shardctl_move_progress_timestamp_seconds{labels}"] >= int(started.timestamp())
    assert found[f'shardctl_move_wal_bytes{{move="{ID}",node="a",purpose="move"}}'] >= 0
    assert found[f'shardctl_slot_active{{node="a",slot="{SLOT}",type="physical"}}'] == 0


def test_a_file_for_node_exporter_is_replaced_at_once_and_has_the_poolers(
    fleet_pooled: PooledFleet, tmp_path: Path
) -> None:
    directory = tmp_path / "collected"
    written = ("metrics", "--textfile", str(directory))
    missing = fleet_pooled.here(*written)
    assert (missing.returncode, "cannot write the metrics" in missing.stderr) == (1, True)
    directory.mkdir()
    fleet_pooled.pg_bouncer.admin("PAUSE shard5")
    try:
        done = fleet_pooled.here(*written)
    finally:
        fleet_pooled.pg_bouncer.admin("RESUME shard5")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    [file] = directory.iterdir()
    assert (file.name, file.stat().st_mode & 0o777) == ("shardctl-test.prom", 0o644)
    before = read(file.read_text())
    assert before['shardctl_pooler_up{pooler="p1"}'] == 1
    assert before['shardctl_pooler_paused_databases{pooler="p1"}'] == 1
    assert before['shardctl_pooler_map_version{pooler="p1"}'] == before["shardctl_map_version"]
    inode = file.stat().st_ino
    assert fleet_pooled.here(*written).returncode == 0
    [again] = directory.iterdir()
    assert again.stat().st_ino != inode
    assert read(again.read_text())['shardctl_pooler_paused_databases{pooler="p1"}'] == 0
