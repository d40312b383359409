"""What is odd about an id; and `--deep`: every row's id and key, one scan for each table."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import psycopg
from psycopg import errors, sql

from shardctl.errors import Misused
from shardctl.postgres import catalog, queries
from shardctl.postgres.connection import NodeUnavailable, connect
from shardctl.state import keys, lock
from shardctl.state.map import Map
from shardctl.topology.model import ShardId

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shardctl.checks.check import Place
    from shardctl.ids.layout import Layout
    from shardctl.postgres.catalog import Keyed
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
"""Misplaced ids that are looked up, and kept, at a time."""

_HIGHEST = (1 << 63) - 1

Relation = tuple[str, str]
"""A schema and a table in it."""


@dataclass(frozen=True, slots=True)
class _Source:
    """One table to scan; `id` or `key` may be None, not both."""

    shard: ShardId
    schema: str
    table: str
    id: str | None
    key: str | None


@dataclass(slots=True)
class _Tally:
    """What one table's scan has found so far: count, example and its shard for each kind."""

    found: dict[Code, tuple[int, int, int]] = field(default_factory=dict)

    def add(self, code: Code, example: int, other: int) -> None:
        count, *first = self.found.get(code, (0, example, other))
        self.found[code] = (count + 1, first[0], first[1])

    def odd(self, source: _Source) -> list[Odd]:
        return [
            Odd(source.shard, source.table, code, example, other, count)
            for code, (count, example, other) in self.found.items()
        ]


def scan(
    place: Place, ids: Mapping[Relation, str], layout: Layout, now_ms: int
) -> tuple[list[Odd], dict[str, bool | None]]:
    """Read all rows of the tables with these id columns, and of those whose key is known.

    `now_ms` is what the node's clock shows. Also gives the tables with a named key,
    and whether it is an integer; None where its column is missing.
    Raises what reading the migrations and their key columns raises.
    """
    named = _keyed(place)
    keyed = [one for one in named if one.present]
    # A partitioned table's rows are its partitions'.
    key_of = {(k.schema, k.name): k for k in keyed if k.integer and k.kind != "p"}
    began = time.monotonic()
    odd: list[Odd] = []
    homes = dict.fromkeys([*ids, *key_of])
    progress, node = place.progress, place.node.name
    progress.expect(node, "reading ids", len(homes), "tables")
    with ExitStack() as sessions:
        claimed = _Claimed(place, sessions)
        for number, home in enumerate(homes):
            schema, table = home
            progress.advance(node, 1 if number else 0)
            # The server reads all of its rows and sends only odd ones: no sign of life until then.
            progress.waits(node, f"all rows of {schema}.{table}")
            key = key_of.get(home)
            shard = place.shards[schema if key is None else key.home]
            source = _Source(shard, *home, ids.get(home), None if key is None else key.column)
            elapsed_ms = int((time.monotonic() - began) * 1000)
            try:
                tally = _scan(place, source, Ruler.at(layout, now_ms + elapsed_ms), claimed)
            except (errors.UndefinedTable, errors.UndefinedColumn):
                continue  # it was there a moment ago
            except errors.LockNotAvailable:
                odd.append(Odd(source.shard, table, "locked"))
            else:
                odd += tally.odd(source)
    progress.waits(node, None)
    missing = dict.fromkeys((one.named for one in named), None)
    return odd, missing | {one.named: one.integer for one in keyed}


def _keyed(place: Place) -> list[Keyed]:
    """Find the tables with keys that migrations and the topology name, in this node's shards."""
    columns = keys.of_cluster(place.topology, place.migrations)
    return catalog.read_keyed(place.connection, list(place.shards), columns)


def _scan(place: Place, source: _Source, ruler: Ruler, claimed: _Claimed) -> _Tally:
    tally = _Tally()
    misplaced: list[int] = []
    shard_of = Map.of(place.topology).shard_of
    for number, key in _rows(place, source, ruler):
        if number is not None and (code := ruler.fault(number, source.shard)):
            # One fault a row: a misplaced row's key is elsewhere with it.
            if code != "other_shard":
                tally.add(code, number, ruler.made_for(number))
                continue
            misplaced.append(number)
            if len(misplaced) == BATCH:
                _settle(tally, source, ruler, claimed, misplaced)
                misplaced.clear()
        elif key is not None:
            try:
                belongs = shard_of(key)
            except Misused:
                tally.add("no_key", key, source.shard)
            else:
                if belongs != source.shard:
                    tally.add("other_key", key, belongs)
    _settle(tally, source, ruler, claimed, misplaced)
    return tally


def _settle(
    tally: _Tally, source: _Source, ruler: Ruler, claimed: _Claimed, misplaced: Sequence[int]
) -> None:
    """Count misplaced ids: as duplicates where the shard that they claim has them too."""
    by_shard: dict[int, list[int]] = {}
    for number in misplaced:
        by_shard.setdefault(ruler.made_for(number), []).append(number)
    for shard, numbers in by_shard.items():
        twice = claimed.present(source, shard, numbers)
        for number in numbers:
            tally.add("duplicate" if number in twice else "other_shard", number, shard)


def _rows(place: Place, source: _Source, ruler: Ruler) -> Iterator[tuple[int | None, int | None]]:
    """Stream id and key of the rows that may be odd."""
    layout = ruler.layout
    none = sql.SQL("NULL::bigint")
    id_column = none if source.id is None else sql.Identifier(source.id)
    key_column = none if source.key is None else sql.Identifier(source.key)
    values = {
        "id": id_column,
        "key": key_column,
        "limit": sql.Literal(max(0, min(ruler.limit, _HIGHEST))),
        "sequence_bits": sql.Literal(layout.sequence_bits),
        "max_shard": sql.Literal(layout.max_shard),
        "shard": sql.Literal(source.shard),
        "count": sql.Literal(place.topology.shard_count),
    }
    odd = [QUERIES["odd_id"].format(**values)] if source.id is not None else []
    if source.key is not None:
        # Where keys are ids, the same numbers are odd.
        name = "odd_id" if place.topology.key_rule == "id" else "odd_key"
        odd.append(QUERIES[name].format(**values | {"id": key_column}))
    statement = QUERIES["scan"].format(
        conditions=sql.SQL("\nOR ").join(odd),
        table=sql.Identifier(source.schema, source.table),
        **values,
    )
    with place.connection.cursor() as cursor:
        # Row by row: where a whole shard was loaded into another, every row is odd.
        yield from cursor.stream(statement)


class _Claimed:
    """Looks ids up in the shards that they claim, over sessions of its own."""

    def __init__(self, place: Place, sessions: ExitStack) -> None:
        self._place = place
        self._sessions = sessions
        self._open: dict[NodeName, Connection | None] = {}
        self._owners = place.topology.owners()

    def present(self, source: _Source, shard: int, numbers: Sequence[int]) -> set[int]:
        """Return which of these ids the table of that name in `shard` holds.

        None of them where it cannot be asked: its node's own findings explain why.
        """
        owner = self._owners.get(ShardId(shard))
        session = None if owner is None else self._session(owner)
        if session is None or source.id is None:
            return set()
        statement = QUERIES["present"].format(
            id=sql.Identifier(source.id),
            table=sql.Identifier(self._place.topology.schema(ShardId(shard)), source.table),
            wanted=sql.Literal(list(numbers)),
        )
        try:
            return {number for (number,) in session.execute(statement)}
        except psycopg.Error:
            return set()

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
