"""Make shards read-only, or accept writes again, on all nodes that have them.

The triggers are put on, or taken off, in small transactions.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from shardctl import fanout
from shardctl.access import read_only
from shardctl.access.read_only import BY_ROW, BY_STATEMENT, QUERIES, Wanted
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
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from shardctl.access.read_only import Table
    from shardctl.fanout import Outcome, Progress
    from shardctl.postgres.blocking import Held
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import Node, NodeName, ShardId, Topology

_SHOWN = 3
_SLOWEST_MS = 400
"""How long writers wait behind shardctl where a session holds the lock all the time."""


@dataclass(frozen=True, slots=True)
class NodePlan:
    """What one node's shards need: the tables to change by shard, and shards that need nothing."""

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

        def change(one: NodePlan) -> Changing:
            changing = Changing(locks[one.node], one.node, wanted, deadline, stop, progress)
            changing.run(one.todo)
            return changing

        try:
            outcomes = fanout.run([one for one in now if one.todo], change, stop=stop)
        except KeyboardInterrupt as interrupt:
            raise Interrupted(
                "interrupted: some shards may be changed, and some not",
                hint=f"run `shardctl {wanted.command}` again to do the rest; `shardctl status` "
                "shows the read-only shards",
            ) from interrupt
        _report(outcomes, wanted)


def _report(outcomes: Sequence[Outcome[NodePlan, Changing]], wanted: Wanted) -> None:
    """Raise what is left, if anything is; exit code 1 where nothing was changed."""
    # The state of a node that failed as a whole is unknown.
    changed = any(one.value is None or one.value.changed for one in outcomes)
    undo = ", or run `read-only off` to undo it" if changed and wanted is Wanted.on else ""
    errors: list[ShardctlError] = []
    for outcome in outcomes:
        if isinstance(outcome.error, ShardctlError):
            errors.append(outcome.error)
            continue
        left = outcome.result().left
        reasons: dict[str, list[ShardId]] = {}
        for shard, reason in left.items():
            reasons.setdefault(reason, []).append(shard)
        whys = [f"{ranges.of(of)} were not changed: {why}" for why, of in reasons.items()]
        if whys:
            error = incomplete_if(
                changed,
                "shards_left",
                f"node {outcome.item.node}: shards {sentences(whys, most=_SHOWN)}",
                hint="end the sessions that block it, or raise --wait, and run `shardctl "
                f"{wanted.command}` again: it does only the rest{undo}",
            )
            errors.append(error)
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
    return _decide(topology, node, tables, wanted)


def _decide(
    topology: Topology, node: Node, tables: Mapping[ShardId, Sequence[Table]], wanted: Wanted
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
        if needed:
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
    """One statement that every table in question needs, for each of its triggers.

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


Piece = tuple["ShardId", "tuple[Table, ...]"]
"""What is done together: a shard's tables, or some of them where it has very many."""


@dataclass(slots=True)
class Changing:
    """The change of one node's shards, over a session that holds its lock, in autocommit."""

    session: Connection
    node: str
    wanted: Wanted
    deadline: float
    """On the monotonic clock."""
    stop: threading.Event
    progress: Progress
    since: str = ""
    by: str = field(default_factory=who)
    changed: bool = False
    left: dict[ShardId, str] = field(default_factory=dict)
    """The shards that could not be changed, and why."""

    def run(self, shards: Mapping[ShardId, Sequence[Table]]) -> None:
        """Change these tables of these shards; what holds up one does not hold up the rest.

        When a shard is not among those left, all who began to write before have ended, and those
        who begin now meet the triggers. Raises NodeLost.
        """
        try:
            [(_, self.since)] = self.session.execute(QUERIES["standby"])
            if self.wanted is Wanted.on:
                self.session.execute(QUERIES["function"])
            for one in PASSES[self.wanted]:
                todo = {s: tables for s, tables in shards.items() if s not in self.left}
                self.left |= self._pass(one, todo)
        except psycopg.Error as error:
            if is_lost(error):
                raise NodeLost(self.node, reason_of(error)) from error
            self.left |= dict.fromkeys(shards, reason_of(error))

    def _pass(self, one: Pass, shards: Mapping[ShardId, Sequence[Table]]) -> dict[ShardId, str]:
        """Do one pass over all tables; give the shards that are left, and why."""
        todo = sum(map(len, shards.values()))
        self.progress.expect(self.node, one.phase, todo, "tables")
        most = max(1, min(one.largest, lockable(self.session) // one.locks))
        pieces = [
            (shard, tuple(tables))
            for shard, all_tables in shards.items()
            for tables in chunks(all_tables, most)
        ]
        patient = Patient(
            partial(self._transaction, one),
            partial(self._held, one),
            partial(self.progress.waits, self.node),
            self.stop,
        )
        for batch in chunks(pieces, most, lambda piece: len(piece[1])):
            patient.together(batch)
        left = patient.singly(self.deadline, slowest_ms=_SLOWEST_MS)
        return {shard: why for (shard, _), why in left.items()}

    def _transaction(self, one: Pass, pieces: Sequence[Piece], timeout: int) -> dict[Piece, str]:
        every = [(shard, table) for shard, of_shard in pieces for table in of_shard]
        asked = "SELECT oid FROM pg_class WHERE oid = ANY (%s)"
        found = self.session.execute(asked, [[table.oid for _, table in every]]).fetchall()
        tables = [one for one in every if (one[1].oid,) in found]  # others were dropped meanwhile
        # No other statement locks all at once, and foreign tables can only be locked by theirs.
        listed = sql.SQL(", ONLY ").join(table.place for _, table in tables if not table.foreign)
        modes = [(sql.SQL("SHARE ROW EXCLUSIVE"), timeout)]
        # A vacuum that the server began by itself gives way to who waits for long. The first lock
        # does not hold up readers in the meantime.
        modes += [(sql.SQL("ACCESS EXCLUSIVE"), QUICK_MS)] if one.readers else []
        with self.session.transaction():
            for mode, wait_ms in modes:
                most = {"lock": f"{wait_ms}ms", "statement": f"{one.patience_ms + 4 * timeout}ms"}
                self.session.execute(QUERIES["timeouts"], most)
                if listed.as_string():
                    self.session.execute(QUERIES["lock"].format(tables=listed, mode=mode))
            each = [part for shard, table in tables for part in self._each(one, shard, table)]
            self.session.execute(sql.SQL(";\n").join(each))
            shards = ranges.of({shard for shard, _ in pieces})
            events.record(self.session, self.wanted.command, f"shards {shards}: {one.event}")
        self.changed = True
        self.progress.advance(self.node, len(every))
        return {}

    def _each(self, one: Pass, shard: ShardId, table: Table) -> Iterator[sql.Composed]:
        """Compose the statement of a pass for each trigger of a table, or that it is to have."""
        needed = (BY_STATEMENT, BY_ROW) if table.by_row else (BY_STATEMENT,)
        for name in needed if self.wanted is Wanted.on else table.triggers:
            by_row = name == BY_ROW
            yield QUERIES[one.statement].format(
                trigger=sql.Identifier(name),
                table=table.place,
                each=sql.SQL("ROW" if by_row else "STATEMENT"),
                truncate=sql.SQL("" if by_row or table.foreign else "OR TRUNCATE"),
                shard=sql.Literal(str(shard)),
                since=sql.Literal(self.since),
                who=sql.Literal(self.by),
            )

    def _held(self, one: Pass, pieces: Sequence[Piece]) -> dict[Piece, Held]:
        """Give the lock that is in the way of each piece: that of the oldest transaction."""
        places = {table.oid: piece for piece in pieces for table in piece[1]}
        schemas = {table.schema for _, tables in pieces for table in tables}
        but = () if one.readers else blocking.READERS
        found = blocking.held(self.session, schemas, but=but, tables=list(places))
        return {places[o.oid]: o for o in reversed(found) if o.granted and o.oid is not None}
