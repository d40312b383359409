"""Metrics as Prometheus reads them, and the page, rules and dashboard that name them."""

from __future__ import annotations

import json
import re
from pathlib import Path

from shardctl.checks.metrics import HELP, of_status, render
from shardctl.checks.status import NodeStatus, PoolerStatus, Standby, State, Status
from shardctl.topology.model import PoolerName
from tests.fixtures.fleets.facts import NOW, A, healthy

MONITORING = Path(__file__).parents[3] / "docs" / "monitoring"


def test_labels_are_escaped_and_no_two_samples_have_the_same() -> None:
    standbys = (Standby("walreceiver", "streaming", 7, None), Standby("walreceiver", None, 9, 0.5))
    node = NodeStatus(A, State.up, (), standbys=standbys)
    down = PoolerStatus(PoolerName("p1"), error="refused")
    samples = of_status(healthy().topology, Status("", NOW, (node,), (down,)))
    lines = render('a"b\\c', samples).splitlines()
    of_standby = [line for line in lines if line.startswith("shardctl_standby_lag_bytes")]
    assert of_standby == [
        r'shardctl_standby_lag_bytes{cluster="a\"b\\c",node="a",standby="walreceiver"} 9'
    ]
    assert r'shardctl_pooler_up{cluster="a\"b\\c",pooler="p1"} 0' in lines
    assert not [line for line in lines if line.startswith("shardctl_pooler_clients")]
    assert lines[:2] == [
        f"# HELP shardctl_node_up {HELP['node_up']}",
        "# TYPE shardctl_node_up gauge",
    ]


def test_the_page_has_every_metric_and_alert_and_nothing_else_is_named() -> None:
    page, rules, dashboard = (
        (MONITORING / name).read_text(encoding="utf-8")
        for name in ("index.md", "alerts.yml", "dashboard.json")
    )
    json.loads(dashboard)
    every = {f"shardctl_{name}" for name in HELP}
    assert re.findall(r"^\| `(shardctl_\w+)`", page, re.MULTILINE) == [
        f"shardctl_{name}" for name in HELP
    ]
    assert {*re.findall(r"shardctl_\w+", rules + dashboard)} <= every
    alerts = re.findall(r"alert: (\w+)", rules)
    assert re.findall(r"^\| `(Shardctl\w+)`", page, re.MULTILINE) == alerts
