"""Percentiles and sums of how long operations took."""

from __future__ import annotations

import pytest

from shardctl.topology.model import ShardId
from shardctl.traffic import latency
from shardctl.traffic.record import OK, Kind, Record


def record(*operations: tuple[int, str | None, float, float], client: int = 0) -> Record:
    """Make a record of (shard, error or None, seconds it took, when it ended)."""
    made = Record(client)
    for shard, error, duration, ended in operations:
        outcome = made.failed(error, "told", ended) if error else OK
        made.done(ShardId(shard), Kind.insert, outcome, duration, ended)
    return made


@pytest.mark.parametrize(
    ("share", "value"), [(0, 1), (0.01, 1), (0.5, 50), (0.99, 99), (0.991, 100), (1, 100)]
)
def test_a_percentile_is_a_value_that_occurred(share: float, value: int) -> None:
    assert latency.percentile(range(1, 101), share) == value


def test_a_second_belongs_to_what_ended_in_it_and_one_without_anything_is_shown_empty() -> None:
    found = latency.measure([record((0, None, 0.001, 0.9), (0, None, 2.5, 3.2))], ())
    assert [second.operations for second in found.seconds] == [1, 0, 0, 1]
    assert found.seconds[1].longest_ms is None
    assert found.seconds[3].longest_ms == 2500.0


def test_shards_are_summed_over_clients_and_told_apart_by_whether_they_moved() -> None:
    first = record((2, None, 0.010, 0.5), (5, None, 0.003, 0.6))
    second = record((2, "42P01", 0.200, 0.7), client=1)
    found = latency.measure([first, second], {ShardId(2)})
    moved, stayed = found.shards
    assert (moved.shard, moved.moved, moved.operations, moved.errors) == (2, True, 2, 1)
    assert (stayed.shard, stayed.moved, stayed.longest_ms) == (5, False, 3.0)
    assert found.longest_ms(moved=True) == 200.0
    assert found.longest_ms(moved=False) == 3.0
