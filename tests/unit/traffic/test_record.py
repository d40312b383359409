"""A client's record, its mix of operations and its share of the shards."""

from __future__ import annotations

from shardctl.topology.model import ShardId
from shardctl.traffic import report
from shardctl.traffic.record import OK, Kind, Record

HERE = ShardId(3)


def test_a_write_is_noted_before_it_is_sent_and_counts_when_it_is_acknowledged() -> None:
    record = Record(0)
    number = record.attempt_insert(HERE)
    assert (record.attempted[number], record.acknowledged[number], record.inserts) == (1, 0, 0)
    assert record.pick(HERE) is None
    record.inserted(number, 77)
    assert (record.ids[number], record.acknowledged[number], record.inserts) == (77, 1, 1)
    assert record.pick(HERE) == number
    assert record.attempt_update(number) == 2
    assert record.acknowledged[number] == 1
    record.updated(number, 2)
    assert (record.acknowledged[number], record.updates) == (2, 1)


def test_a_version_is_never_sent_twice() -> None:
    record = Record(0)
    number = record.attempt_insert(HERE)
    assert [record.attempt_update(number) for _ in range(3)] == [2, 3, 4]


def test_errors_are_counted_by_code_with_the_message_that_came_first() -> None:
    first, second = Record(0), Record(1)
    for record, code, message, at in (
        (first, "08006", "the server hung up", 2.0),
        (first, "08006", "again", 3.0),
        (second, "08006", "earlier", 1.0),
        (second, "42P01", "no such table", 4.0),
    ):
        record.done(HERE, Kind.insert, record.failed(code, message, at), 0.1, at)
    first.done(HERE, Kind.select, OK, 0.1, 5.0)
    lost, fenced = report.failures([first, second])
    assert (lost.code, lost.count, lost.first, lost.at_s) == ("08006", 3, "earlier", 1.0)
    assert (fenced.code, fenced.count) == ("42P01", 1)
    assert report.operations([first, second]) == {"insert": 4, "update": 0, "select": 1, "both": 0}
