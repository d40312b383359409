"""Make shards read-only, or accept writes again, on all nodes that have them.

The triggers are put on, or taken off, in small transactions.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
from psycopg import sql

from shardctl import fanout
from shardctl.access import fence, read_only
from shardctl.access.read_only import QUERIES, Wanted
from shardctl.errors import (
    Interrupted,
    Refused,
    ShardctlError,
    incomplete_if,
    together,
)
from shardctl.libpq import reason_of
from shardctl.meter import listed, sentences
from shardctl.postgres import blocking
from shardctl.postgres.connection import NodeLost, is_lost
from shardctl.postgres.patient import QUICK_MS, Patient, chunks, lockable
from shardctl.state import cluster, events, identity, ledger, lock, observer
from shardctl.state.lock import who
from shardctl.topology import ranges

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from shardctl.access.read_only import Table
    from shardctl.fanout import Outcome, Progress
    from shardctl.postgres.blocking import Held
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import Node, NodeName, ShardId, Topology

_SHOWN = 3
_SLOWEST_MS = 400
"""How long writers wait behind shardctl where a session holds the lock all the time."""
_MAKING_POLL_S = 0.01


def shards_left(
    node: NodeName, wanted: Wanted, left: Mapping[ShardId, str], *, changed: bool
) -> Refused:
    """Report shards that are not what they were to be; exit code 1 where nothing was changed."""
    reasons: dict[str, list[ShardId]] = {}
    for shard, reason in left.items():
        reasons.setdefault(reason, []).append(shard)
    whys = [
        f"shards {ranges.of(shards)} were not changed: {why}" for why, shards in reasons.items()
    ]
    undo = ", or run `read-only off` to undo it" if wanted is Wanted.on else ""
    return incomplete_if(
        changed,
        "shards_left",
        f"node {node}: {sentences(whys, most=_SHOWN)}",
        hint=(
            "end the sessions that block it, or raise --wait, and run `shardctl "
            f"{wanted.command}` again: it does only the rest"
        )
        + (undo if changed else ""),
    )


@dataclass(frozen=True, slots=True)
class NodePlan:
    """What one node's shards need: the tables to change by shard, and shards that need nothing.

    A shard without a table to change is there where something is in the making in its schema: who
    makes it is waited for.
    """

    node: NodeName
    todo: Mapping[ShardId, tuple[Table, ...]]
    unchanged: tuple[ShardId, ...]

    @property
    def tables(self) -> int:
        """How many tables are changed."""
        return sum(map(len, self.todo.values()))

    def as_json(self) -> dict[str, Any]:
        """Give the shape of docs/reference/json.md."""
        return {
            "node": self.node,
            "shards": sorted(self.todo),
            "tables": self.tables,
            "unchanged": sorted(self.unchanged),
        }


def plan(
    topology: Topology, shards: Iterable[ShardId], wanted: Wanted, *, purpose: str
) -> list[NodePlan]:
    """Look at the shards on their nodes and describe what they need; changes nothing.

    Raises shards_not_here, shards_empty, tables_not_ours, NodeUnavailable, node_unfit,
    format_too_new, or Problems of several.
    """
    chosen = frozenset(shards)
    nodes = [node for node in topology.nodes.values() if chosen.intersection(node.shards)]

    def look(session: Connection, node: Node) -> NodePlan:
        return _look(topology, node, session, chosen, wanted)

    return list(observer.ask(topology, look, purpose=purpose, nodes=nodes).every().values())


def carry_out(
    topology: Topology,
    plans: Sequence[NodePlan],
    wanted: Wanted,
    *,
    wait_s: float,
    progress: Progress,
) -> None:
    """Change shards under their nodes' locks, waiting `wait_s` for those who write to them.

    What they need is looked at again when no other command can change the nodes any more. Raises
    NodeLocked and what `plan` raises with nothing done; shards_left and NodeLost, or Problems of
    several, when all else is done; Interrupted between two transactions.
    """
    nodes = [one.node for one in plans if one.todo]
    with lock.held(topology, nodes, command=wanted.command) as locks:
        shards = [shard for one in plans if one.todo for shard in one.todo]
        now = plan(topology, shards, wanted, purpose=lock.purpose(wanted.command))
        deadline, stop = time.monotonic() + wait_s, threading.Event()

        def change(one: NodePlan) -> Result:
            session = locks[one.node]
            [(_, since)] = session.execute(QUERIES["standby"])
            changing = Changing(session, one.node, wanted, since, deadline, stop, progress)
            return changing.run(one.todo, {topology.schema(shard): shard for shard in one.todo})

        try:
            outcomes = fanout.run([one for one in now if one.todo], change, stop=stop)
        except KeyboardInterrupt as interrupt:
            raise Interrupted(
                "interrupted: some shards may be changed, and some not",
                hint=f"run `shardctl {wanted.command}` again to do the rest; `shardctl status` "
                "shows the read-only shards",
            ) from interrupt
        _report(outcomes, wanted)


def _report(outcomes: Sequence[Outcome[NodePlan, Result]], wanted: Wanted) -> None:
    """Raise what is left, if anything is."""
    done = [outcome.result() for outcome in outcomes if outcome.error is None]
    # The state of a node that failed as a whole is unknown.
    changed = len(done) < len(outcomes) or any(result.changed for result in done)
    errors: list[ShardctlError] = []
    for outcome in outcomes:
        if isinstance(outcome.error, ShardctlError):
            errors.append(outcome.error)
            continue
        if isinstance(outcome.error, psycopg.Error):
            left: Mapping[ShardId, str] = dict.fromkeys(outcome.item.todo, reason_of(outcome.error))
        else:
            left = outcome.result().left
        if left:
            errors.append(shards_left(outcome.item.node, wanted, left, changed=changed))
    if errors:
        raise together(errors)


def _look(
    topology: Topology, node: Node, session: Connection, chosen: frozenset[ShardId], wanted: Wanted
) -> NodePlan:
    session.execute("SET default_transaction_read_only TO on")
    [(standby, _)] = session.execute(QUERIES["standby"])
    if standby:
        raise identity.standby(node)
    state = cluster.read(session) if cluster.is_present(session) else None
    if state is None:
        raise identity.node_unfit(
            node.name, "it has no schema `shardctl`", hint="run `shardctl init` first"
        )
    identity.check(state, topology, node.name)
    for one in ledger.copies(session, topology, node.name, state):
        streamed = chosen.intersection(one.move.shards)
        if one.move.streams and streamed and not one.move.state.closed:
            # A stream does not replicate triggers, and stops at them.
            raise ledger.in_the_way(
                one,
                f": it streams shards {ranges.of(sorted(streamed))}, and `read-only` would change "
                "tables that the stream follows",
            )
    owners = cluster.read_map(session)
    schemas = {topology.schema(shard): shard for shard in node.shards if shard in chosen}
    found = read_only.tables(session, list(schemas))
    absent = [s for n, s in schemas.items() if n not in found or owners.get(s) != node.name]
    if absent:
        raise Refused(
            "shards_not_here",
            f"node {node.name}: shards {ranges.of(sorted(absent))} are not live on it",
            hint="check `shardctl moves list` for a move of these shards; `shardctl verify` "
            "shows the differences",
        )
    tables = {schemas[name]: of_schema for name, of_schema in sorted(found.items())}
    making: set[ShardId] = set()
    if wanted is Wanted.on and schemas:
        asked = fence.making(sql.SQL(", ").join(map(sql.Literal, schemas)))
        making = {schemas[schema] for _, schema in session.execute(asked)}
    return _decide(topology, node, tables, wanted, making)


def _decide(
    topology: Topology,
    node: Node,
    tables: Mapping[ShardId, Sequence[Table]],
    wanted: Wanted,
    making: Collection[ShardId],
) -> NodePlan:
    """Name which tables need a change; raises shards_empty, tables_not_ours."""
    empty = [shard for shard, found in tables.items() if not found]
    if empty and wanted is Wanted.on:
        raise Refused(
            "shards_empty",
            f"node {node.name}: shards {ranges.of(sorted(empty))} have no tables",
            hint="run `shardctl migrate` first, or leave these shards out",
        )
    todo: dict[ShardId, tuple[Table, ...]] = {}
    for shard, found in sorted(tables.items()):
        if wanted is Wanted.on:
            needed = tuple(table for table in found if not table.refuses)
        else:
            needed = tuple(table for table in found if table.arguments is not None)
        if needed or shard in making:
            todo[shard] = needed
    foreign = [f"{t.schema}.{t.name}" for found in todo.values() for t in found if not t.ours]
    if foreign:
        raise Refused(
            "tables_not_ours",
            f"node {node.name}: {topology.database.user} does not own "
            f"{listed(foreign, most=_SHOWN)}",
            hint="set `database.user` to their owner, a member of that role, or a superuser",
        )
    return NodePlan(node.name, todo, tuple(sorted(tables.keys() - todo.keys())))


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


class Result(NamedTuple):
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
        for batch in chunks(pieces, most, lambda piece: len(piece.tables)):
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
