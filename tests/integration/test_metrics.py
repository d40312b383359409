"""`metrics` and `verify --nagios` beside real servers, and the files of docs/monitoring."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from shardctl.checks.metrics import gauges, render
from shardctl.meter import Reading
from shardctl.state import journal, progress
from tests.fixtures.fleets.scraped import everything
from tests.fixtures.servers.postgres import free_ports

if TYPE_CHECKING:
    from tests.fixtures.fleets.pooled import PooledFleet

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "docs" / "monitoring"
PROMTOOL = shutil.which("promtool", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
NAME = re.compile(r"\bshardctl_[a-z_]+\b")

needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool is missing: run tests/promtool.sh"
)


def promtool(*arguments: str, stdin: str = "") -> None:
    """Run promtool, and see that it has nothing to complain about."""
    assert PROMTOOL is not None
    done = subprocess.run(
        [PROMTOOL, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=MONITORING,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "warning" not in done.stderr.lower()


def values(text: str) -> dict[str, float]:
    """Give samples by name and labels but the cluster's, as `name/label/label`."""
    return {
        "/".join([one.name, *(v for k, v in one.labels.items() if k != "cluster")]): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def emitted() -> set[str]:
    return {f"shardctl_{gauge.name}" for gauge in gauges(everything())}


@needs_promtool
def test_promtool_reads_every_metric() -> None:
    promtool("check", "metrics", stdin=render(everything()))


@needs_promtool
def test_promtool_loads_the_alert_rules_and_their_tests_pass() -> None:
    promtool("check", "rules", "shardctl.rules.yml")
    promtool("test", "rules", "shardctl.rules.test.yml")


@pytest.mark.parametrize("name", ["grafana-dashboard.json", "shardctl.rules.yml"])
def test_the_files_use_only_metrics_that_exist(name: str) -> None:
    used = set(NAME.findall((MONITORING / name).read_text(encoding="utf-8")))
    assert used
    assert used <= emitted()


def test_the_page_lists_every_metric() -> None:
    page = (MONITORING / "index.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(shardctl_[a-z_]+)` \|", page, re.MULTILINE)) == emitted()


def test_each_panel_of_the_dashboard_has_its_own_place() -> None:
    board = json.loads((MONITORING / "grafana-dashboard.json").read_text(encoding="utf-8"))
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    cells = [
        (panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y)
        for panel in board["panels"]
        for x in range(panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) == 23
    targets = [one for panel in board["panels"] for one in panel.get("targets", ())]
    for one in targets:
        assert len(NAME.findall(one["expr"])) == one["expr"].count('{cluster="$cluster"}')


def test_a_fleet_with_a_pooler_a_slot_and_an_open_move_is_measured(
    fleet_pooled: PooledFleet,
) -> None:
    fleet_pooled.execute("a", "SELECT pg_create_physical_replication_slot('left', true)")
    with fleet_pooled.connect("a") as session:
        given: dict[str, Any] = {"schemas": ["shard0"], "retired": ["shard0__retired_5f3a9c1e"]}
        given |= {"method": "stream", "source": "a", "target": "b", "shards": [0], "plan": {}}
        journal.open_move(session, move="5f3a9c1e", **given)
        progress.write(session, "5f3a9c1e", Reading("copying", "bytes", 3, 9, 1.0, rate=5.0))
    try:
        fleet_pooled.execute("a", "INSERT INTO shard0.photos (user_id) VALUES (0)")
        found = values(fleet_pooled.here("metrics").stdout)
    finally:
        fleet_pooled.execute("a", "SELECT pg_drop_replication_slot('left')")
    [(size,)] = fleet_pooled.query("b", "SELECT pg_database_size(current_database())")
    assert found["shardctl_node_up/a"] == found["shardctl_node_up/b"] == 1
    assert found["shardctl_node_shards/a"] == found["shardctl_node_shards_present/a"] == 4
    assert found["shardctl_node_database_bytes/b"] == pytest.approx(size, rel=0.02)
    assert found["shardctl_pooler_up/p1"] == 1
    assert found["shardctl_pooler_map_version/p1"] == found["shardctl_node_map_version/a"]
    assert found["shardctl_slot_active/a/left/physical"] == 0
    assert found["shardctl_slot_wal_bytes/a/left/physical"] > 0
    assert (found["shardctl_moves/running"], found["shardctl_moves/unfinished"]) == (0, 1)
    assert found["shardctl_move_copied_bytes/5f3a9c1e/a/b"] == 3
    assert 0 <= found["shardctl_move_progress_age_seconds/5f3a9c1e/a/b"] < 60
    assert "shardctl_verify_age_seconds" not in found


def test_a_node_and_a_pooler_that_are_down_leave_the_rest_as_it_is(
    fleet_pooled: PooledFleet,
) -> None:
    (port,) = free_ports(1)
    fleet_pooled.pg_bouncer.stop()
    with fleet_pooled.at_ports(b=port):
        done = fleet_pooled.here("metrics")
    found = values(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert (found["shardctl_node_up/a"], found["shardctl_node_up/b"]) == (1, 0)
    assert found["shardctl_pooler_up/p1"] == 0
    assert "shardctl_pooler_map_version/p1" in found  # the file is still readable
    assert "shardctl_node_shards_present/a" in found


def test_verify_answers_a_monitoring_system_and_metrics_has_its_result(
    fleet_pooled_healthy: PooledFleet,
) -> None:
    fleet = fleet_pooled_healthy
    done = fleet.here("verify", "--nagios")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert done.stdout.startswith("SHARDCTL OK - cluster test: 8 shards on 2 nodes and 1 pooler")
    assert done.stdout.count("\n") == 1
    found = values(fleet.here("metrics").stdout)
    assert found["shardctl_verify_findings/error"] == 0
    assert 0 <= found["shardctl_verify_age_seconds"] < 60
    (port,) = free_ports(1)
    with fleet.at_ports(b=port):
        away = fleet.here("verify", "--nagios", "--check", "connection")
    assert (away.returncode, away.stderr) == (2, "")
    assert "node b" in away.stdout
    fleet.execute("a", "DROP SCHEMA shard1 CASCADE")
    partial = fleet.here("verify", "--nagios", "--check", "map")
    assert partial.returncode == 2
    assert partial.stdout.startswith("SHARDCTL CRITICAL - cluster test: ")
    assert values(fleet.here("metrics").stdout)["shardctl_verify_findings/error"] == 0
    assert fleet.here("verify", "--nagios").returncode == 2
    assert values(fleet.here("metrics").stdout)["shardctl_verify_findings/error"] > 0
