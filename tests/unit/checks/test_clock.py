"""How far clocks are apart, from samples and from given offsets."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardctl.checks import clock
from shardctl.checks.check import View
from shardctl.checks.clock import Offset
from shardctl.topology.model import NodeName
from tests.fixtures.servers.postgres import local_node, local_topology


def judged(**offsets: Offset) -> list[tuple[str, str, str | None]]:
    """Judge offsets; give code, severity and node."""
    node = local_node(Path("/nowhere"), "a", 1, range(8))
    seen = {NodeName(name): offset for name, offset in offsets.items()}
    view = View(
        local_topology(Path("/nowhere"), node), (), {}, seen, deep=False, poolers={}, moves=()
    )
    return [(f.code, f.severity.value, f.node) for f in clock.judge(view)]


def exact(ahead: float) -> Offset:
    return Offset(ahead, 0.0)


@pytest.mark.parametrize(("ahead", "severity"), [(-0.06, "warning"), (0.51, "error")])
def test_one_nodes_skew_is_one_finding(ahead: float, severity: str) -> None:
    assert judged(a=exact(0), b=exact(ahead), c=exact(0)) == [("skew", severity, "b")]
