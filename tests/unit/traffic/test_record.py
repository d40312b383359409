"""A client's record, its mix of operations and its share of the shards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardctl.topology.model import ShardId
from shardctl.traffic import operations, report
from shardctl.traffic.operations import Mix
from shardctl.traffic.plan import shares
from shardctl.traffic.record import AT_HAND, OK, Kind, Record

if TYPE_CHECKING:
    from collections.abc import Sequence

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


def test_rows_at_hand_are_bounded_and_come_from_all_that_were_written() -> None:
    record = Record(0)
    for number in range(1000):
        record.inserted(record.attempt_insert(HERE), number + 1)
    picked = {record.pick(HERE) for _ in range(5000)}
    assert len(picked) <= AT_HAND
    assert max(number for number in picked if number is not None) > 500


def test_an_update_or_read_without_a_row_becomes_an_insert() -> None:
    record = Record(0)
    for kind in Kind:
        assert operations.draw(kind, record, HERE)[0] is Kind.insert
    record.inserted(0, 5)
    for kind in Kind:
        assert operations.draw(kind, record, HERE)[0] is kind


def test_a_mix_is_drawn_by_its_weights_and_may_not_be_empty() -> None:
    assert Mix(insert=1, update=0, select=0, both=0).kinds() == (Kind.insert,)
    with pytest.raises(ValueError, match="at least one weight"):
        Mix(0, 0, 0, 0).kinds()


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


@given(shards=st.integers(1, 50), clients=st.integers(1, 60))
def test_every_shard_has_a_client_and_no_two_share_one_unless_they_must(
    shards: int, clients: int
) -> None:
    parts: Sequence[Sequence[int]] = shares([ShardId(n) for n in range(shards)], clients)
    assert len(parts) == clients
    assert all(parts)
    given_out = sorted(shard for part in parts for shard in part)
    assert set(given_out) == set(range(shards))
    assert len(given_out) == max(shards, clients)
