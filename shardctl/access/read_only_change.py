"""Put the triggers of read-only shards on, or take them off, in small transactions."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from shardctl.access import fence, read_only
from shardctl.access.read_only import QUERIES, Wanted
from shardctl.libpq import reason_of
from shardctl.postgres import blocking
from shardctl.postgres.connection import NodeLost, is_lost
from shardctl.postgres.patient import QUICK_MS, Patient, batches, chunks, lockable
from shardctl.state import events
from shardctl.state.lock import who
from shardctl.topology import ranges

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping, Sequence

    from shardctl.access.read_only import Table
    from shardctl.fanout import Progress
    from shardctl.postgres.blocking import Held
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import ShardId

_SLOWEST_MS = 400
"""How long writers wait behind shardctl where a session holds the lock all the time."""
_MAKING_POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class Pass:
    """One statement that every table in question needs.

    `largest` is how many tables a transaction takes at the most; each takes `locks` entries of the
    lock table. `patience_ms` is how long its first locks may be held while it waits for the rest.
    `readers` shows whether those who read are in its way, and it in theirs.
    """

    statement: str
    phase: str
    event: str
    largest: int
    locks: int
    patience_ms: int
    readers: bool = False


PASSES: dict[Wanted, tuple[Pass, ...]] = {
    Wanted.on: (Pass("put_on", "refusing writes", "writes are refused", 100, 1, 1000),),
    Wanted.off: (
        # Writes are accepted everywhere before anything waits for readers.
        Pass("disable", "accepting writes", "writes are accepted", 100, 1, 1000),
        Pass("drop", "removing triggers", "triggers are removed", 50, 3, 300, readers=True),
    ),
}


@dataclass(frozen=True, slots=True)
class Piece:
    """What is done together: a shard's tables, or some of them where it has very many."""

    shard: ShardId
    tables: tuple[Table, ...]

    @property
    def oids(self) -> list[int]:
        """The tables' OIDs."""
        return [table.oid for table in self.tables]


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a node: shards that are left, and why; whether anything was changed."""

    left: Mapping[ShardId, str]
    changed: bool


@dataclass(slots=True)
class Changing:
    """The change of one node's shards, over a session that holds its lock, in autocommit."""

    session: Connection
    node: str
    wanted: Wanted
    since: str
    deadline: float
    """On the monotonic clock."""
    stop: threading.Event
    progress: Progress
    changed: bool = False

    def run(
        self, shards: Mapping[ShardId, Sequence[Table]], schemas: Mapping[str, ShardId]
    ) -> Result:
        """Change these tables of these shards; what holds up one does not hold up the rest.

        `schemas` has a shard's even where it needs no change: a table may be in the making there.

        When a shard is not among those left, all who began to write before have ended, and those
        who begin now meet the triggers. Raises NodeLost.
        """
        left: dict[ShardId, str] = {}
        try:
            if self.wanted is Wanted.on:
                self.session.execute(QUERIES["function"])
            for one in PASSES[self.wanted]:
                todo = {s: tables for s, tables in shards.items() if s not in left}
                left |= self._pass(one, todo)
            if self.wanted is Wanted.on:
                left |= self._made({n: shard for n, shard in schemas.items() if shard not in left})
        except psycopg.Error as error:
            if is_lost(error):
                raise NodeLost(self.node, reason_of(error)) from error
            raise
        return Result(left, self.changed)

    def _made(self, schemas: Mapping[str, ShardId]) -> dict[ShardId, str]:
        """Wait for tables that are made and not committed; give the shards that have new ones."""
        if not schemas:
            return {}
        message = fence.making(sql.SQL(", ").join(map(sql.Literal, schemas)))
        while makers := self.session.execute(message).fetchall():
            if self.stop.is_set() or time.monotonic() > self.deadline:
                break
            self.stop.wait(_MAKING_POLL_S)
        # Only now all tables can be seen that were begun before.
        found = read_only.tables(self.session, list(schemas)).items()
        new = {
            schemas[schema]: f"table {table.name} is new and accepts writes"
            for schema, tables in found
            for table in tables
            if not table.refuses
        }
        return new | {
            schemas[schema]: (
                f"{f'session {pid}' if pid else 'a prepared transaction'} is creating a "
                "table there and has not committed it"
            )
            for pid, schema in makers
        }

    def _pass(self, one: Pass, shards: Mapping[ShardId, Sequence[Table]]) -> dict[ShardId, str]:
        """Do one pass over all tables; give the shards that are left, and why."""
        todo = sum(map(len, shards.values()))
        self.progress.expect(self.node, one.phase, todo, "tables")
        most = max(1, min(one.largest, lockable(self.session) // one.locks))
        pieces = [
            Piece(shard, tuple(tables))
            for shard, all_tables in shards.items()
            for tables in chunks(all_tables, most)
        ]
        patient = Patient(
            partial(self._transaction, one),
            partial(self._held, one),
            partial(self.progress.waits, self.node),
            self.stop,
        )
        for batch in batches(pieces, most, lambda piece: len(piece.tables)):
            patient.together(batch)
        left = patient.singly(self.deadline, slowest_ms=_SLOWEST_MS)
        return {piece.shard: why for piece, why in left.items()}

    def _transaction(self, one: Pass, pieces: Sequence[Piece], timeout: int) -> dict[Piece, str]:
        shards = [piece.shard for piece in pieces for _ in piece.tables]
        tables = sql.Literal([oid for piece in pieces for oid in piece.oids])
        statement = QUERIES[one.statement].format(
            tables=tables,
            triggers=QUERIES["triggers"].format(tables=tables),
            shards=sql.Literal([int(shard) for shard in shards]),
            by_row=sql.Literal([table.by_row for piece in pieces for table in piece.tables]),
            since=sql.Literal(self.since),
            who=sql.Literal(who()),
            quick=sql.Literal(f"{QUICK_MS}ms"),
        )
        most = {"lock": f"{timeout}ms", "statement": f"{one.patience_ms + 4 * timeout}ms"}
        with self.session.transaction():
            self.session.execute(QUERIES["timeouts"], most)
            self.session.execute(statement)
            result = f"shards {ranges.of(shards)}: {one.event}"
            events.record(self.session, self.wanted.command, result)
        self.changed = True
        self.progress.advance(self.node, len(shards))
        return {}

    def _held(self, one: Pass, pieces: Sequence[Piece]) -> dict[Piece, Held]:
        """Give the lock that is in the way of each piece: that of the oldest transaction."""
        places = {table.oid: piece for piece in pieces for table in piece.tables}
        schemas = {table.schema for piece in pieces for table in piece.tables}
        but = () if one.readers else blocking.READERS
        found = blocking.held(self.session, schemas, but=but, tables=list(places))
        return {places[o.oid]: o for o in reversed(found) if o.granted and o.oid is not None}
