"""Percentiles and sums of how long operations took."""

from __future__ import annotations

from shardctl.topology.model import ShardId
from shardctl.traffic import report
from shardctl.traffic.record import OK, Kind, Record


def record(*operations: tuple[int, str | None, float, float], client: int = 0) -> Record:
    """Make a record of (shard, error or None, seconds it took, when it ended)."""
    made = Record(client)
    for shard, error, duration, ended in operations:
        outcome = made.failed(error, "told", ended) if error else OK
        made.done(ShardId(shard), Kind.insert, outcome, duration, ended)
    return made


def test_shards_are_summed_over_clients_and_told_apart_by_whether_they_moved() -> None:
    first = record((2, None, 0.010, 0.5), (5, None, 0.003, 0.6))
    second = record((2, "42P01", 0.200, 0.7), client=1)
    found = report.measure([first, second], {ShardId(2)})
    moved, stayed = found.shards
    assert (moved.shard, moved.moved, moved.operations, moved.errors) == (2, True, 2, 1)
    assert (stayed.shard, stayed.moved, stayed.longest_ms) == (5, False, 3.0)
    assert found.longest_ms(moved=True) == 200.0
    assert found.longest_ms(moved=False) == 3.0
