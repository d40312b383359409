"""How far clocks are apart, from samples and from given offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardctl.checks import clock
from shardctl.checks.check import View
from shardctl.checks.clock import Offset, Sample, estimate
from shardctl.topology.model import NodeName
from tests.fixtures.servers.postgres import local_node, local_topology

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def judged(tmp_path: Path) -> Judged:
    return Judged(tmp_path)


class Judged:
    """Judges offsets, and tells code, severity, node and what is."""

    def __init__(self, directory: Path) -> None:
        self.topology = local_topology(directory, local_node(directory, "a", 1, range(8)))

    def __call__(self, **offsets: Offset) -> list[tuple[str, str, str | None, str]]:
        seen = {NodeName(name): offset for name, offset in offsets.items()}
        view = View(self.topology, (), {}, seen, deep=False)
        return [(f.code, f.severity.value, f.node, f.actual) for f in clock.judge(view)]


def exact(ahead: float) -> Offset:
    return Offset(ahead, 0.0)


def test_the_sample_with_the_shortest_way_counts() -> None:
    slow = Sample(there=100.0, received=105.0, round_trip=8.0)
    quick = Sample(there=200.5, received=200.25, round_trip=0.5)
    assert estimate([slow, quick, slow]) == Offset(ahead=0.5, uncertainty=0.25)


@pytest.mark.parametrize(
    ("ahead", "severity"), [(0.06, "warning"), (-0.06, "warning"), (0.51, "error"), (-3, "error")]
)
def test_one_nodes_skew_is_one_finding(judged: Judged, ahead: float, severity: str) -> None:
    [(code, grave, node, actual)] = judged(a=exact(0), b=exact(ahead), c=exact(0))
    assert (code, grave, node) == ("skew", severity, "b")
    direction = "ahead of" if ahead > 0 else "behind"
    assert actual == (
        f"its clock is {abs(ahead) * 1000:.0f} ms {direction} the clock of shardctl's machine"
    )


def test_nodes_that_are_apart_though_each_is_near_are_one_finding(judged: Judged) -> None:
    assert judged(a=exact(0.04), b=exact(0), c=exact(-0.04)) == [
        ("skew_between", "warning", "a", "its clock is 80 ms ahead of node c")
    ]


def test_where_all_nodes_agree_the_clock_here_is_told(judged: Judged) -> None:
    assert judged(a=exact(0.7), b=exact(0.71), c=exact(0.7)) == [
        (
            "skew_here",
            "error",
            None,
            "the clock of shardctl's machine is 705 ms behind all nodes",
        )
    ]
    assert [f[:3] for f in judged(a=exact(0.7))] == [("skew", "error", "a")]
