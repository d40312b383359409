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


def test_of_one_value_all_percentiles_are_that_one_and_of_none_there_are_none() -> None:
    assert [latency.percentile([7], share) for share in (0, 0.5, 1)] == [7, 7, 7]
    assert latency.percentile([], 0.99) is None


def test_errors_are_in_the_longest_and_not_in_the_percentiles() -> None:
    found = latency.spread(latency.done(record((0, None, 0.002, 1), (0, "08006", 3.0, 2))))
    assert (found.operations, found.errors) == (2, 1)
    assert (found.p50_ms, found.p99_ms, found.longest_ms) == (2.0, 2.0, 3000.0)


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


def test_a_load_in_which_nothing_ended_has_no_numbers() -> None:
    found = latency.measure([Record(0)], ())
    assert (found.overall.operations, found.overall.longest_ms, found.seconds) == (0, None, ())
    assert found.longest_ms(moved=True) is None


def test_what_was_summed_up_before_can_be_left_out() -> None:
    made = record((0, None, 0.001, 0.1), (0, None, 0.005, 0.2))
    assert [round(one.duration, 3) for one in latency.done(made, 1)] == [0.005]


def test_operations_that_end_while_a_second_is_summed_up_belong_to_the_next() -> None:
    made = record((0, None, 0.001, 0.1))
    second = latency.done(made, 0, 1)
    made.done(ShardId(0), Kind.insert, OK, 0.5, 0.2)
    assert len(list(second)) == 1
