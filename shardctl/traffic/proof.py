"""After a load: compares all live rows with what clients had acknowledged."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple

from psycopg import errors, sql

from shardctl.errors import ShardctlError
from shardctl.ids.layout import IdOutOfRange, Layout
from shardctl.traffic import fleet
from shardctl.traffic.client_routes import QUERIES, TABLE
from shardctl.traffic.record import SHOWN, row_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from shardctl.topology.model import NodeName, ShardId, Topology
    from shardctl.traffic.fleet import Fleet
    from shardctl.traffic.record import Record


Flaw = Literal["lost", "duplicate", "misplaced", "unknown", "astray", "stale"]
"""`lost`: an acknowledged row that is missing, or older than acknowledged.
`duplicate`: a row that exists twice, or an id that two rows have.
`misplaced`: a row in another shard than its id's. `unknown`: one that no client tried to write.
`astray`: one in a live shard on a node that does not own it, and not on its owner.
`stale`: a read or update, during the load, that missed an acknowledged version."""


class Row(NamedTuple):
    """A row of the load's table."""

    id: int
    client: int
    number: int
    version: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """The number of flaws of each kind, and some of them in words."""

    counts: Mapping[Flaw, int]
    examples: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether there are none."""
        return not any(self.counts.values())


class Comparison:
    """Takes all rows, those on the shards' owners first, then returns the flaws.

    Keeps one byte for each attempted row, and none of the rows.
    """

    def __init__(self, records: Sequence[Record], layout: Layout) -> None:
        self._records = {record.client: record for record in records}
        self._met = {record.client: bytearray(len(record.shards)) for record in records}
        self._layout = layout
        self._counts: dict[Flaw, int] = defaultdict(int)
        self._examples: list[str] = []

    def owned(self, shard: ShardId, row: Row) -> None:
        """Check a row on the owner of its shard."""
        if not self._belongs(row, shard):
            self._add("misplaced", f"{_of(shard, row)}: the id belongs to another shard")
            return
        record = self._record(shard, row)
        if record is None:
            self._add("unknown", f"{_of(shard, row)}: no client tried to write it")
            return
        met, number = self._met[row.client], row.number
        expected = record.acknowledged[number]
        if expected and record.ids[number] != row.id:
            other = f"the same row was acknowledged as id {record.ids[number]}"
            self._add("duplicate", f"{_of(shard, row)}: {other}")
            return
        if met[number]:
            self._add("duplicate", f"{_of(shard, row)}: it exists twice")
            return
        met[number] = 1
        if row.version < expected:
            difference = f"expected version {expected}, found {row.version}"
            self._add("lost", f"{_of(shard, row)}: {difference}")
        elif row.version > record.attempted[number]:
            self._add("unknown", f"{_of(shard, row)}: no client wrote version {row.version}")

    def elsewhere(self, shard: ShardId, node: NodeName, row: Row) -> None:
        """Check a row on a node that has the shard live but does not own it."""
        known = self._record(shard, row) is not None
        if known and self._met[row.client][row.number]:
            self._add("duplicate", f"{_of(shard, row)}: it is also on node {node}")
        else:
            self._add("astray", f"{_of(shard, row)}: it is only on node {node}")

    def verdict(self, unserved: Collection[ShardId]) -> Verdict:
        """Return the flaws, after the last row; `unserved` shards could not be read."""
        for record in self._records.values():
            met = self._met[record.client]
            for number, expected in enumerate(record.acknowledged):
                if expected and not met[number] and record.shards[number] not in unserved:
                    row = Row(record.ids[number], record.client, number, expected)
                    self._add("lost", f"{_of(record.shards[number], row)}: it is missing")
            for text in record.stale_shown:
                self._add("stale", text)
            self._counts["stale"] += record.stale - len(record.stale_shown)
        for number in self._given_twice():
            self._add("duplicate", f"id {number}: acknowledged for two rows")
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
        """Return the record of the client that tried this row in this shard; None if none did."""
        record = self._records.get(row.client)
        if record is None or not 0 <= row.number < len(record.shards):
            return None
        return record if record.shards[row.number] == shard else None

    def _add(self, flaw: Flaw, example: str) -> None:
        self._counts[flaw] += 1
        if self._counts[flaw] <= SHOWN:
            self._examples.append(f"{flaw}: {example}")


def _of(shard: int, row: Row) -> str:
    return row_of(shard, row.id, row.client, row.number)


_AT_ONCE = 5000


class FleetUnsettled(ShardctlError):
    """Shards that moved while their rows were read."""

    def __init__(self, node: NodeName) -> None:
        super().__init__(
            f"node {node}: shards moved while their rows were read",
            hint="run the load again after the move",
        )


def judge(topology: Topology, found: Fleet, records: Sequence[Record]) -> Verdict:
    """Compare all live rows with the acknowledged ones; raises NodeUnavailable, FleetUnsettled."""
    comparison = Comparison(records, Layout.of(topology.id))
    for name in found.nodes:
        for shard, row in _rows(topology, found, name, found.holding(name)):
            comparison.owned(shard, row)
    for name in found.nodes:
        others = found.nodes[name].live - found.holding(name)
        for shard, row in _rows(topology, found, name, others):
            comparison.elsewhere(shard, name, row)
    return comparison.verdict(found.unserved())


def _rows(
    topology: Topology, found: Fleet, name: NodeName, shards: Collection[ShardId]
) -> Iterator[tuple[ShardId, Row]]:
    """Yield the rows of the load's table in some shards of a node."""
    there = sorted(set(found.nodes[name].tables).intersection(shards))
    if not there:
        return
    with fleet.session(topology, topology.nodes[name]) as connection:
        try:
            for shard in there:
                of_shard = sql.Identifier(topology.schema(shard), TABLE)
                with connection.cursor(name="rows") as cursor:
                    cursor.itersize = _AT_ONCE
                    for row in cursor.execute(QUERIES["rows"].format(table=of_shard)):
                        yield shard, Row(*row)
        except (errors.UndefinedTable, errors.InvalidSchemaName) as error:
            raise FleetUnsettled(name) from error
