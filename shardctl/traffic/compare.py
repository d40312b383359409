"""Compare what clients were told with the rows that the fleet has, row by row."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple

from shardctl.ids.layout import IdOutOfRange
from shardctl.traffic.record import SHOWN

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from shardctl.ids.layout import Layout
    from shardctl.topology.model import NodeName, ShardId
    from shardctl.traffic.record import Record

Flaw = Literal["lost", "duplicate", "misplaced", "unknown", "astray", "stale"]
"""`lost`: an acknowledged row that is not there, or older than was acknowledged.
`duplicate`: a row that is there twice, or an id that was given out twice.
`misplaced`: a row in another shard than its id says. `unknown`: one that nobody tried to write.
`astray`: one in a shard that is live on a node which does not own it, and not on its owner.
`stale`: a read or update, during the load, that did not meet what was acknowledged before."""


class Row(NamedTuple):
    """A row of the load's table."""

    id: int
    client: int
    number: int
    version: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """How many flaws of each kind were found, and some of them in words."""

    counts: Mapping[Flaw, int]
    examples: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether there is none."""
        return not any(self.counts.values())


class Comparison:
    """Takes all rows, those on the shards' owners first, then says what is wrong.

    Keeps one byte for each row that was tried, and none of the rows.
    """

    def __init__(self, records: Sequence[Record], layout: Layout) -> None:
        self._records = {record.client: record for record in records}
        self._met = {record.client: bytearray(len(record.shards)) for record in records}
        self._layout = layout
        self._counts: dict[Flaw, int] = defaultdict(int)
        self._examples: list[str] = []

    def owned(self, shard: ShardId, row: Row) -> None:
        """Take a row from the owner of its shard."""
        if not self._belongs(row, shard):
            self._add("misplaced", f"{_of(shard, row)}: the id is of another shard")
            return
        record = self._record(shard, row)
        if record is None:
            self._add("unknown", f"{_of(shard, row)}: nobody tried to write it")
            return
        met, number = self._met[row.client], row.number
        expected = record.acknowledged[number]
        if expected and record.ids[number] != row.id:
            told = f"the same was acknowledged as id {record.ids[number]}"
            self._add("duplicate", f"{_of(shard, row)}: {told}")
            return
        if met[number]:
            self._add("duplicate", f"{_of(shard, row)}: it is there twice")
            return
        met[number] = 1
        if row.version < expected:
            told = f"version {row.version} is there and {expected} was acknowledged"
            self._add("lost", f"{_of(shard, row)}: {told}")
        elif row.version > record.attempted[number]:
            self._add("unknown", f"{_of(shard, row)}: nobody wrote version {row.version}")

    def elsewhere(self, shard: ShardId, node: NodeName, row: Row) -> None:
        """Take a row from a node that has the shard live and does not own it."""
        known = self._record(shard, row) is not None
        if known and self._met[row.client][row.number]:
            self._add("duplicate", f"{_of(shard, row)}: it is on node {node}, too")
        else:
            self._add("astray", f"{_of(shard, row)}: it is on node {node} only")

    def verdict(self, unserved: Collection[ShardId]) -> Verdict:
        """Say what is wrong, after the last row; `unserved` shards were not to be read."""
        for record in self._records.values():
            met = self._met[record.client]
            for number, expected in enumerate(record.acknowledged):
                if expected and not met[number] and record.shards[number] not in unserved:
                    row = Row(record.ids[number], record.client, number, expected)
                    self._add("lost", f"{_of(record.shards[number], row)}: it is not there")
            for seen in record.stale_shown:
                row = Row(record.ids[seen.number], record.client, seen.number, seen.expected)
                met_then = "no row" if seen.seen is None else f"version {seen.seen}"
                told = f"{_of(seen.shard, row)}: version {seen.expected} was acknowledged"
                self._add("stale", f"{told}, and later {met_then} was there")
            self._counts["stale"] += record.stale - len(record.stale_shown)
        for number in self._given_twice():
            self._add("duplicate", f"id {number}: it was acknowledged for two rows")
        return Verdict(dict(self._counts), tuple(self._examples))

    def _given_twice(self) -> Iterator[int]:
        acknowledged = sorted(
            number
            for record in self._records.values()
            for number, version in zip(record.ids, record.acknowledged, strict=True)
            if version
        )
        return (first for first, second in pairwise(acknowledged) if first == second)

    def _belongs(self, row: Row, shard: ShardId) -> bool:
        try:
            return self._layout.decode(row.id).shard == shard
        except IdOutOfRange:
            return False

    def _record(self, shard: ShardId, row: Row) -> Record | None:
        """Give the record of the client that tried this row in this shard; None if none did."""
        record = self._records.get(row.client)
        if record is None or not 0 <= row.number < len(record.shards):
            return None
        return record if record.shards[row.number] == shard else None

    def _add(self, flaw: Flaw, example: str) -> None:
        self._counts[flaw] += 1
        if self._counts[flaw] <= SHOWN:
            self._examples.append(f"{flaw}: {example}")


def _of(shard: int, row: Row) -> str:
    return f"shard {shard}, id {row.id} (client {row.client}, row {row.number})"
