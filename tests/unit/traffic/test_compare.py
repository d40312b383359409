"""What is wrong with rows, found from records and rows made by hand."""

from __future__ import annotations

from shardctl.ids.layout import Layout
from shardctl.topology.model import NodeName, ShardId
from shardctl.traffic.proof import Comparison, Row, Verdict
from shardctl.traffic.record import Record

LAYOUT = Layout()
NOW_MS = 1_700_000_000_000
HERE, OTHER = ShardId(2), ShardId(5)


def identity(number: int, shard: int = HERE) -> int:
    return LAYOUT.encode(NOW_MS, shard, number)


def records(rows: int = 3, *, client: int = 0) -> Record:
    """Make a record of rows in one shard, all acknowledged at version 1."""
    made = Record(client)
    for number in range(rows):
        made.attempt_insert(HERE)
        made.inserted(number, identity(number))
    return made


def row(number: int, *, client: int = 0, version: int = 1, shard: int = HERE) -> Row:
    return Row(identity(number, shard), client, number, version)


def compare(record: Record, *rows: Row, **others: Row) -> dict[str, int]:
    """Give the flaws when these rows are in the shard, and others on other nodes."""
    return {flaw: n for flaw, n in verdict(record, *rows, **others).counts.items() if n}


def verdict(record: Record, *rows: Row, **others: Row) -> Verdict:
    comparison = Comparison([record], LAYOUT)
    for one in rows:
        comparison.owned(HERE, one)
    for node, one in others.items():
        comparison.elsewhere(HERE, NodeName(node), one)
    return comparison.verdict(())


def test_an_acknowledged_row_that_is_not_there_is_lost() -> None:
    found = verdict(records(), row(0), row(2))
    assert found.counts["lost"] == 1
    assert not found.ok
    assert str(identity(1)) in found.examples[0]


def test_a_row_without_an_acknowledgement_may_be_there_or_not() -> None:
    record = records(1)
    record.attempt_insert(HERE)
    assert compare(record, row(0)) == {}
    assert compare(record, row(0), row(1)) == {}


def test_an_older_version_than_was_acknowledged_is_lost() -> None:
    record = records(1)
    record.updated(0, record.attempt_update(0))
    assert compare(record, row(0, version=1)) == {"lost": 1}
    assert compare(record, row(0, version=2)) == {}


def test_a_row_that_nobody_tried_to_write_is_unknown() -> None:
    assert compare(records(1), row(0), row(1)) == {"unknown": 1}
    assert compare(records(1), row(0), row(0, client=9)) == {"unknown": 1}
    assert compare(records(1), row(0), Row(identity(7), 0, -1, 1)) == {"unknown": 1}


def test_a_row_that_is_there_twice_is_a_duplicate() -> None:
    assert compare(records(1), row(0), row(0)) == {"duplicate": 1}


def test_a_row_that_has_come_again_under_another_id_is_a_duplicate() -> None:
    again = Row(identity(99), 0, 0, 1)
    assert compare(records(1), row(0), again) == {"duplicate": 1}
    assert compare(records(1), again) == {"duplicate": 1, "lost": 1}


def test_a_row_on_two_nodes_is_a_duplicate() -> None:
    found = verdict(records(2), row(0), row(1), b=row(1))
    assert found.counts["duplicate"] == 1


def test_a_row_that_only_the_wrong_node_has_is_astray_and_if_acknowledged_lost() -> None:
    assert compare(records(2), row(0), b=row(1)) == {"astray": 1, "lost": 1}
    unacknowledged = records(1)
    unacknowledged.attempt_insert(HERE)
    assert compare(unacknowledged, row(0), b=row(1)) == {"astray": 1}


def test_an_id_of_another_shard_is_misplaced() -> None:
    record = records(1)
    assert compare(record, row(0), row(1, shard=OTHER)) == {"misplaced": 1}


def test_an_id_that_was_acknowledged_twice_is_a_duplicate() -> None:
    record = records(1)
    record.attempt_insert(HERE)
    record.inserted(1, identity(0))
    assert compare(record, row(0)) == {"duplicate": 1, "lost": 1}


def test_what_was_read_stale_is_told() -> None:
    record = records(1)
    record.found_stale(0, 1, None)
    assert compare(record, row(0)) == {"stale": 1}
