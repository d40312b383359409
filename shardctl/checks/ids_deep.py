"""What is odd about an id; and `--deep`: every row's id and key, one scan for each table."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import psycopg
from psycopg import errors, sql

from shardctl.checks.scan import Scan, belongs
from shardctl.postgres import catalog, patient, queries
from shardctl.postgres.connection import NodeUnavailable, connect
from shardctl.state import keys, lock
from shardctl.topology.model import ShardId

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardctl.checks.check import Place
    from shardctl.checks.scan import Relation
    from shardctl.ids.layout import Layout
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import NodeName


Code = Literal["negative", "duplicate", "other_shard", "future", "other_key", "no_key", "locked"]

AHEAD_MS = 10_000
"""The allowed lead of ids over their node's clock: the strict generator has one in a burst."""


@dataclass(frozen=True, slots=True)
class Odd:
    """One kind of fault in one shard's table.

    `example` is the id, or the key where the table has no id; None where nothing was read.
    `other` is the shard that the example belongs to. `count` is None where not all rows were
    read.
    """

    shard: ShardId
    table: str
    code: Code
    example: int | None = None
    other: int | None = None
    count: int | None = None


@dataclass(frozen=True, slots=True)
class Ruler:
    """What ids of a layout are measured with at a moment: `limit` is the first future id."""

    layout: Layout
    limit: int

    @classmethod
    def at(cls, layout: Layout, now_ms: int) -> Ruler:
        """Make the ruler for a node whose clock shows `now_ms` (Unix time)."""
        ticks = (now_ms + AHEAD_MS - layout.epoch_ms) // layout.tick_ms + 1
        return cls(layout, ticks << layout.shard_bits + layout.sequence_bits)

    def made_for(self, number: int) -> int:
        """Give the shard that an id claims, also of a number that no generator made."""
        return number >> self.layout.sequence_bits & self.layout.max_shard

    def fault(self, number: int, shard: int) -> Literal["negative", "other_shard", "future"] | None:
        """Return what is odd about an id in `shard`; the first that holds explains the rest."""
        if number < 0:
            return "negative"
        if self.made_for(number) != shard:
            return "other_shard"
        return "future" if number >= self.limit else None


QUERIES = queries.load("shardctl.checks", "ids.sql")

BATCH = 10_000
"""Misplaced ids that are looked up at a time."""

_HIGHEST = (1 << 63) - 1


def scan(
    place: Place, ids: Mapping[Relation, str], layout: Layout, now_ms: int
) -> tuple[list[Odd], dict[str, bool | None]]:
    """Read all rows of the tables with these id columns, and of those whose key is known.

    `now_ms` is what the node's clock shows. Also gives the tables with a named key,
    and whether it is an integer; None where its column is missing.
    Raises what reading the migrations and their key columns raises.
    """
    columns = keys.of_cluster(place.topology, place.migrations)
    named = catalog.read_keyed(place.connection, list(place.shards), columns)
    keyed = [one for one in named if one.present]
    # A partitioned table's rows are its partitions'.
    key_of = {(k.schema, k.name): k for k in keyed if k.integer and k.kind != "p"}
    began = time.monotonic()
    odd: list[Odd] = []
    homes = dict.fromkeys([*ids, *key_of])
    reading = Scan(place.connection, place.node.name, "reading ids", homes, place.progress)
    with ExitStack() as sessions:
        claimed = _Claimed(place, sessions)
        for home in homes:
            key = key_of.get(home)
            shard = place.shards[home[0] if key is None else key.home]
            elapsed_ms = int((time.monotonic() - began) * 1000)
            ruler = Ruler.at(layout, now_ms + elapsed_ms)
            column = None if key is None else key.column
            judge = _Judge(place, claimed, ruler, shard, *home, ids.get(home), column)
            try:
                reading.read(home, judge.odd_rows(), judge.part)
            except (errors.UndefinedTable, errors.UndefinedColumn, errors.InvalidSchemaName):
                continue  # it was there a moment ago
            except errors.LockNotAvailable:
                odd.append(Odd(shard, home[1], "locked"))
            else:
                odd += judge.odd()
    missing = dict.fromkeys((one.named for one in named), None)
    return odd, missing | {one.named: one.integer for one in keyed}


@dataclass(slots=True)
class _Judge:
    """What is odd in one table, by kind; `id` or `key` may be None, not both."""

    place: Place
    claimed: _Claimed
    ruler: Ruler
    shard: ShardId
    schema: str
    table: str
    id: str | None
    key: str | None
    found: dict[Code, tuple[int, int, int]] = field(default_factory=dict)
    """The number of rows, an example and its shard."""

    def _values(self) -> dict[str, sql.Composable]:
        topology, layout = self.place.topology, self.ruler.layout
        none = sql.SQL("NULL::bigint")
        key = None if self.key is None else sql.SQL("t.{}").format(sql.Identifier(self.key))
        is_id = topology.key_rule == "id"
        return {
            "id": none if self.id is None else sql.SQL("t.{}").format(sql.Identifier(self.id)),
            "key": none if key is None else key + sql.SQL("::bigint"),
            "belongs": none if key is None else belongs(topology, key, is_id=is_id),
            "shard": sql.Literal(self.shard),
            "limit": sql.Literal(max(0, min(self.ruler.limit, _HIGHEST))),
            "sequence_bits": sql.Literal(layout.sequence_bits),
            "max_shard": sql.Literal(layout.max_shard),
            "sign_and_shard": sql.Literal(layout.max_shard | 1 << 62),  # the sign is shifted, too
        }

    def odd_rows(self) -> sql.Composed:
        """Compose what holds for a row that is odd."""
        chosen = [("odd_id", self.id), ("odd_key", self.key)]
        chosen += [("no_key", self.key)] if self.place.topology.key_rule == "id" else []
        odd = [QUERIES[name].format(**self._values()) for name, column in chosen if column]
        return sql.SQL(" OR ").join(odd)

    def part(self, part: sql.Composable) -> None:
        """Judge the odd rows of a part of the table."""
        table = sql.Identifier(self.schema, self.table)
        statement = QUERIES["judged"].format(**self._values(), table=table, part=part)
        for code, shard, numbers in self.place.connection.execute(statement):
            twice: set[int] = set()
            if code == "other_shard":
                twice = self.claimed.present(self, shard, numbers)
                self._add("duplicate", [one for one in numbers if one in twice], shard)
            self._add(code, [one for one in numbers if one not in twice], shard)

    def _add(self, code: Code, numbers: Sequence[int], shard: int | None) -> None:
        if numbers:
            other = self.shard if shard is None else shard
            count, example, other = self.found.get(code, (0, numbers[0], other))
            self.found[code] = (count + len(numbers), example, other)

    def odd(self) -> list[Odd]:
        """Give what was found."""
        return [
            Odd(self.shard, self.table, code, example, other, count)
            for code, (count, example, other) in self.found.items()
        ]


class _Claimed:
    """Looks ids up in the shards that they claim, over sessions of its own."""

    def __init__(self, place: Place, sessions: ExitStack) -> None:
        self._place = place
        self._sessions = sessions
        self._open: dict[NodeName, Connection | None] = {}
        self._owners = place.topology.owners()

    def present(self, source: _Judge, shard: int, numbers: Sequence[int]) -> set[int]:
        """Return which of these ids the table of that name in `shard` holds.

        None of them where it cannot be asked: its node's own findings explain why.
        """
        owner = self._owners.get(ShardId(shard))
        session = None if owner is None else self._session(owner)
        if session is None or source.id is None:
            return set()
        found: set[int] = set()
        for few in patient.chunks(numbers, BATCH):
            statement = QUERIES["present"].format(
                id=sql.Identifier(source.id),
                table=sql.Identifier(self._place.topology.schema(ShardId(shard)), source.table),
                wanted=sql.Literal(few),
            )
            try:
                found.update(number for (number,) in session.execute(statement))
            except psycopg.Error:
                return set()
        return found

    def _session(self, node: NodeName) -> Connection | None:
        if node not in self._open:
            topology = self._place.topology
            try:
                session = connect(
                    topology.nodes[node],
                    topology.database,
                    purpose=lock.purpose("verify"),
                    autocommit=True,
                )
            except NodeUnavailable:
                self._open[node] = None
            else:
                self._open[node] = self._sessions.enter_context(session)
                self._sessions.enter_context(self._place.running.statement(session))
                session.execute("SET default_transaction_read_only TO on")
                session.execute("SET lock_timeout TO '1s'")
                catalog.read_tables_only(session)
        return self._open[node]
