"""Prometheus's own tool reads the metrics, and its rules fire as the page describes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.fixtures.fleets.pooled import PooledFleet

PROMTOOL = shutil.which("promtool")
RULES = Path(__file__).parents[2] / "docs" / "monitoring" / "alerts.yml"
pytestmark = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool is not installed: apt-get install prometheus"
)

FIRING = """
rule_files: [{rules}]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {{series: 'shardctl_node_up{{cluster="c", node="a"}}', values: '0x30'}}
      - {{series: 'shardctl_node_up{{cluster="c", node="spare"}}', values: '0x30'}}
      - {{series: 'shardctl_node_shards{{cluster="c", node="a"}}', values: '4x30'}}
      - {{series: 'shardctl_node_shards{{cluster="c", node="spare"}}', values: '0x30'}}
      - {{series: 'shardctl_node_map_version{{cluster="c", node="b"}}', values: '1x30'}}
      - {{series: 'shardctl_node_map_version{{cluster="c", node="d"}}', values: '2x30'}}
      - {{series: 'shardctl_pooler_map_version{{cluster="c", pooler="p"}}', values: '1x30'}}
      - {{series: 'shardctl_map_version{{cluster="c"}}', values: '2x30'}}
      - {{series: 'shardctl_ids_end_timestamp_seconds{{cluster="c"}}', values: '9x30'}}
    promql_expr_test:
      - expr: 'count by (alertname, node) (ALERTS{{alertstate="firing"}})'
        eval_time: 20m
        exp_samples:
          - {{labels: '{{alertname="ShardctlNodeDown", node="a"}}', value: 1}}
          - {{labels: '{{alertname="ShardctlMapsDiffer", node="b"}}', value: 1}}
          - {{labels: '{{alertname="ShardctlPoolerMapDiffers"}}', value: 1}}
          - {{labels: '{{alertname="ShardctlIdsEnd"}}', value: 1}}
"""


def promtool(*words: str | Path, stdin: str = "") -> None:
    done = subprocess.run(
        [str(PROMTOOL), *words], input=stdin, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_finds_nothing_wrong_with_the_metrics(fleet_pooled: PooledFleet) -> None:
    fleet_pooled.execute("a", "SELECT pg_create_physical_replication_slot('left', true)")
    try:
        done = fleet_pooled.here("metrics")
    finally:
        fleet_pooled.execute("a", "SELECT pg_drop_replication_slot('left')")
    assert "shardctl_slot_wal_bytes" in done.stdout
    promtool("check", "metrics", stdin=done.stdout)


def test_promtool_loads_the_rules_and_they_fire_for_nodes_that_own_shards(tmp_path: Path) -> None:
    promtool("check", "rules", RULES)
    tests = tmp_path / "tests.yml"
    tests.write_text(FIRING.format(rules=RULES))
    promtool("test", "rules", tests)
