"""Rates between two samples, and shards that no node or several nodes claim."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardctl.state.shard_loads import Counters, Sample, ShardLoad, claims, with_rates
from shardctl.topology import loader
from shardctl.topology.model import NodeName, ShardId

if TYPE_CHECKING:
    from shardctl.topology.model import Topology

ROOT = Path(__file__).parents[3]
A, B = NodeName("a"), NodeName("b")
counters = st.builds(Counters, st.integers(0, 10**12), st.integers(0, 10**12))
samples = st.builds(
    Sample,
    st.floats(0, 1000),
    st.sampled_from([None, "2026-11-21", "2026-11-22"]),
    st.dictionaries(st.integers(0, 3).map(ShardId), counters),
)


def load(shard: int, node: NodeName = A) -> ShardLoad:
    return ShardLoad(ShardId(shard), f"shard{shard}", node, exists=True, bytes=1, rows=1)


def sample(at: float, reset: str | None = None, **shards: tuple[int, int]) -> Sample:
    return Sample(at, reset, {ShardId(int(s[1:])): Counters(*n) for s, n in shards.items()})


@pytest.fixture(scope="module")
def topology() -> Topology:
    return loader.load(ROOT / "topology.yaml")


def test_rates_are_differences_over_the_time_between_the_samples() -> None:
    [one] = with_rates([load(2)], sample(10, s2=(100, 1000)), sample(12, s2=(150, 1020)))
    assert (one.writes_per_s, one.scans_per_s, one.tps) == (25, 10, 35)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (sample(10, s2=(100, 10)), sample(12, s2=(3, 20))),  # a table was dropped
        (sample(10, "noon", s2=(1, 1)), sample(12, "one", s2=(9, 9))),  # and counted on
        (sample(10), sample(12, s2=(1, 1))),  # its schema was created
        (sample(10, s2=(1, 1)), sample(12)),  # its schema was dropped
        (sample(10, s2=(1, 1)), sample(10, s2=(1, 1))),
    ],
)
def test_rates_are_unknown_where_the_counters_did_not_only_grow(
    first: Sample, second: Sample
) -> None:
    [one] = with_rates([load(2)], first, second)
    assert (one.writes_per_s, one.scans_per_s, one.tps) == (None, None, None)


@given(first=samples, second=samples)
def test_no_rate_is_negative(first: Sample, second: Sample) -> None:
    for one in with_rates([load(shard) for shard in range(4)], first, second):
        assert one.tps is None or one.tps >= 0


def test_shards_of_two_nodes_and_of_none_are_problems(topology: Topology) -> None:
    every = [load(shard) for shard in range(4)] + [load(shard, B) for shard in range(4, 8)]
    assert claims(topology, every, every=True) == []
    [twice] = claims(topology, [*every, load(2, B), load(3, B)], every=True)
    assert str(twice) == "nodes a and b each claim shards 2-3"
    [lost] = claims(topology, every[2:], every=True)
    assert str(lost) == "no node claims shards 0-1"
    assert claims(topology, every[2:], every=False) == []
