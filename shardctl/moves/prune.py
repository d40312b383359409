"""Prune: drop retired schemas, each after a proof that its shard is live on another node.

They are dropped in small transactions that block no other session for long.
"""

from __future__ import annotations

import time
from collections.abc import Mapping  # noqa: TC003  # a field type
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from shardctl import fanout
from shardctl.checks.status import read_schemas
from shardctl.errors import Unfinished, together
from shardctl.libpq import reason_of
from shardctl.meter import sentences
from shardctl.postgres import blocking, catalog, queries
from shardctl.postgres.connection import NodeLost, NodeUnavailable
from shardctl.postgres.patient import Patient, lockable
from shardctl.state import cluster, events, identity, journal, lock, observer
from shardctl.state import ledger as ledgers
from shardctl.state.journal import MoveState
from shardctl.topology import names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardctl.fanout import Progress
    from shardctl.postgres.blocking import Held
    from shardctl.postgres.connection import Connection
    from shardctl.state.ledger import Entry, Ledger
    from shardctl.topology.model import Node, NodeName, ShardId, Topology

    Views = Mapping[NodeName, "View"]

QUERIES = queries.load("shardctl.moves", "prune.sql")

COMMAND = "prune"
_WIDTH = 8
_SHOWN = 3
_LOCK_TIMEOUT = "1s"
_LARGEST_BATCH = 200
"""Objects that one transaction drops: its commit invalidates each in all sessions' caches."""
_PAUSE_S = 0.02
"""Pause between transactions, for other sessions' DDL and autovacuum."""
_PATIENCE_S = 10.0
"""How long prune retries a schema in which another session holds a lock."""


@dataclass(frozen=True, slots=True)
class Retired:
    """One retired schema on a node; `why_not` is None when it may be dropped."""

    node: NodeName
    schema: str
    shard: ShardId | None
    move: str
    size_bytes: int
    """0 where a lock prevented the measurement; then it is in use."""
    why_not: str | None

    def as_json(self) -> dict[str, Any]:
        """Return it in the shape of docs/reference/json.md."""
        given = asdict(self)
        given["refused"] = given.pop("why_not")
        return given


class PruneUnfinished(Unfinished):
    """Schemas that could not be dropped, and why; `dropped` are those that were."""

    def __init__(self, left: Mapping[Retired, str], dropped: Sequence[Retired]) -> None:
        whys = [f"node {one.node}: {one.schema}: {why}" for one, why in left.items()]
        super().__init__(
            f"{len(left)} of {len(left) + len(dropped)} retired schemas were not dropped: "
            f"{sentences(whys, most=_SHOWN)}",
            hint="end the sessions or drop the objects named above, then run `shardctl prune` "
            "again: it drops only the rest",
        )
        self.dropped = tuple(dropped)


def plan(
    topology: Topology, ledger: Ledger, *, accept_unconfirmed: bool, now: bool, purpose: str
) -> list[Retired]:
    """Check every retired schema, and return whether it may be dropped; changes nothing.

    `now` ignores `retain`. A retired schema is kept while the node that owns its shard cannot be
    reached: only that node can prove that the shard is live there. What uses a schema or depends
    on it is met when it is dropped. Raises NodeUnavailable, NodeLocked for a node where something
    may be dropped, and what `identity.check` raises, or Problems for several.
    """
    views = _look(topology, purpose)
    found = _judge(topology, ledger, views, accept_unconfirmed, now)
    concerned = dict.fromkeys(one.node for one in found if one.why_not is None)
    lock.require_all_free(topology, concerned, command=COMMAND)
    return found


def _judge(
    topology: Topology, ledger: Ledger, views: Views, accept_unconfirmed: bool, now: bool
) -> list[Retired]:
    """Say of every retired schema whether it may be dropped; pure."""
    entries = {entry.move.id: entry for entry in ledger.entries}
    shards = {
        names.retired(topology.schema(shard), move): shard
        for move in entries
        for shard in topology.owners()
    }
    proof = Proof(topology, entries, views, accept_unconfirmed)
    found = []
    for node, view in views.items():
        for schema, size in view.retired.items():
            one = Retired(node, schema, shards.get(schema), schema[-8:], size, None)
            why = proof.why_not(one, None if now else view.clock)
            found.append(replace(one, why_not=why))
    return found


def carry_out(
    topology: Topology,
    chosen: Sequence[Retired],
    progress: Progress,
    *,
    accept_unconfirmed: bool = False,
) -> None:
    """Drop retired schemas in small transactions, node by node, under the nodes' locks.

    Checks the fleet again under the locks, and what depends on a schema in the transaction that
    drops it; waits for short queries, as of another prune. Raises NodeLocked and what `plan` raises
    with nothing done; PruneUnfinished and NodeLost when all else is done.
    """
    concerned = {one.node for one in chosen}
    nodes = [name for name in topology.nodes if name in concerned]
    with lock.held(topology, nodes, command=COMMAND) as locks:
        purpose = lock.purpose(COMMAND)
        views, ledger = _look(topology, purpose), ledgers.read(topology, purpose=purpose)
        found = _judge(topology, ledger, views, accept_unconfirmed, now=True)
        whys = {(one.node, one.schema): one.why_not for one in found}
        left = {
            one: why
            for one in chosen
            if (why := whys.get((one.node, one.schema), "it is not there any more")) is not None
        }
        ended = fanout.collect(
            locks,
            lambda name: _drop(
                locks[name],
                name,
                [one for one in chosen if one.node == name and one not in left],
                progress,
            ),
            width=_WIDTH,
        )
        errors = ended.errors
        for _, stayed in ended.values:
            left |= stayed
        lost = {name for name, _ in ended.problems}
        dropped = [one for one in chosen if one not in left and one.node not in lost]
        if not errors:
            gone = {(one.node, one.schema) for one in dropped}
            kept = {one.move for one in found if (one.node, one.schema) not in gone}
            _close(locks, [e for e in ledger.entries if e.move.id not in kept], views)
    if left:
        errors.append(PruneUnfinished(left, dropped))
    if errors:
        raise together(errors)


@dataclass(frozen=True, slots=True)
class Proof:
    """What proves that retired schemas may be dropped: all nodes' journals and maps."""

    topology: Topology
    entries: Mapping[str, Entry]
    views: Views
    accept_unconfirmed: bool

    def why_not(self, one: Retired, now: datetime | None) -> str | None:
        """Return why a schema may not be dropped `now`, or at any time; None where it may."""
        entry = self.entries.get(one.move)
        return _why_not_reversed(entry) or self._by_move(entry, now) or self._lacks(one)

    def _by_move(self, entry: Entry | None, now: datetime | None) -> str | None:
        """Return why the journal forbids dropping what a move retired, or None."""
        if entry is None:
            return "no move in this cluster's journal retired it"
        move = entry.move
        if entry.state not in ("done", "unconfirmed"):
            return f"move {move.id} is {entry.state}"
        if move.proof == "differs":
            return f"move {move.id} found differences to the target: compare it by hand"
        if move.proof != "compared" and not self.accept_unconfirmed:
            return f"move {move.id} is unconfirmed (--accept-unconfirmed drops it anyway)"
        if now is not None and entry.due is not None and now < entry.due:
            until = entry.due.astimezone(UTC)
            return f"kept until {until:%Y-%m-%d %H:%M:%S} UTC (--now drops it)"
        return None

    def _lacks(self, one: Retired) -> str | None:
        """Return what the proof lacks that a shard's rows are live elsewhere, or None."""
        if one.shard is None:
            return "it belongs to no shard of this topology"
        if self.views[one.node].map.get(one.shard) == one.node:
            why = self._not_returned(one, one.shard)
            if why is not None:
                return f"this node owns shard {one.shard} in the map, and {why}"
        return why_not_live(self.topology, self.views, one.node, one.shard)

    def _not_returned(self, one: Retired, shard: ShardId) -> str | None:
        """Return what the proof lacks that a later move has brought a shard back, or None.

        That move made the live schema from another node's copy, and compared both. Without it the
        retired copy may be the only one with the rows, whatever the map says.
        """
        every, retiring = self.entries.values(), self.entries[one.move]
        moved = [e for e in every if shard in e.move.shards and e.state != "aborted"]
        last = max(moved, key=_version, default=retiring)
        if _version(last) <= _version(retiring) or last.move.target != one.node:
            return "the last move of it in the journals has not brought it back"
        return self._by_move(last, None)


def _why_not_reversed(entry: Entry | None) -> str | None:
    """Return why the reverse of a move needs what it retired, or None."""
    if entry is None or (reverse := entry.reverse) is None or not reverse.holds:
        return None
    move = entry.move.id
    if reverse.state == "begun":
        return f"move {reverse.move} reverses move {move}"
    until = reverse.until.astimezone(UTC)
    return (
        f"move {move} can be reversed until {until:%Y-%m-%d %H:%M:%S} UTC "
        f"(`shardctl moves finish {move}` gives that up)"
    )


def why_not_live(topology: Topology, views: Views, node: NodeName, shard: ShardId) -> str | None:
    """Return what the proof lacks that a shard is live with the owner that all know, or None.

    The node's own map has every move of its shards, whatever a node that is away knows.
    """
    newest = max(view.version for view in views.values())
    owners = {
        view.map.get(shard)
        for name, view in views.items()
        if view.version == newest or name == node
    }
    owner = owners.pop() if len(owners) == 1 else None
    if owner is not None and owner not in views:
        return f"node {owner} owns shard {shard} in the map, but is unreachable"
    if owner is None or views[owner].map.get(shard) != owner:
        return f"the nodes' maps disagree about the owner of shard {shard}"
    if topology.schema(shard) not in views[owner].live:
        return f"shard {shard} is not live on node {owner}, which owns it"
    return None


def _version(entry: Entry) -> int:
    """Return the map's version when a move was planned: a later move has a higher one."""
    return int(entry.move.plan.get("map_version", 0))


def _close(locks: Mapping[NodeName, Connection], without: Sequence[Entry], views: Views) -> None:
    """Close unconfirmed moves without retired schemas: the operator has accepted them."""
    for entry in without:
        move = entry.move
        if entry.state == "unconfirmed" and {move.source, move.target} <= views.keys():
            for session in locks.values():
                journal.advance(session, move.id, [MoveState.unconfirmed], MoveState.done)


@dataclass(frozen=True, slots=True)
class View:
    """One node's map and live schemas; its retired schemas with their sizes, and its clock."""

    version: int = 0
    map: Mapping[ShardId, NodeName] = field(default_factory=dict)
    live: frozenset[str] = frozenset()
    retired: Mapping[str, int] = field(default_factory=dict)
    clock: datetime | None = None


def _look(topology: Topology, purpose: str) -> Views:
    """Query all nodes; some may be unreachable.

    Raises NodeUnavailable where no node that owns shards answers, and what `identity.check` raises,
    or Problems for several.
    """
    asked = observer.ask(topology, partial(_view, topology), purpose=purpose)
    others = [one for one in asked.problems if not isinstance(one, NodeUnavailable)]
    if others or not any(node.name in asked.values for node in topology.owning()):
        asked.every()
    return asked.values


def _view(topology: Topology, session: Connection, node: Node) -> View:
    session.execute("SELECT set_config('lock_timeout', %s, false)", [_LOCK_TIMEOUT])
    found = view_of(topology, session, node)
    if found is None:
        return View()
    retired, clock = queries.one(session, QUERIES["retired"])
    sizes = {name: size or 0 for name, (size, _) in read_schemas(session, []).items()}
    return replace(found, retired={name: sizes.get(name, 0) for name in retired or []}, clock=clock)


def view_of(topology: Topology, session: Connection, node: Node) -> View | None:
    """Read a node's map, and which shards' schemas are live there; None for a stranger.

    A clone that has claimed nothing yet is none. Raises what `identity.check` raises.
    """
    row = cluster.read(session) if cluster.is_present(session) else None
    if row is None or identity.is_clone(session, node, row):
        return None
    identity.check(row, topology, node.name)
    wanted = [topology.schema(shard) for shard in topology.owners()]
    live = frozenset(catalog.present(session, wanted))
    return View(row.map_version, cluster.read_map(session), live)


def _drop(
    session: Connection, node: str, chosen: Sequence[Retired], progress: Progress
) -> dict[Retired, str]:
    """Drop schemas of the session's node; return those that remain, and why.

    The session holds the node's lock, in autocommit. What holds up one schema does not hold up
    the others. Raises NodeLost.
    """
    progress.expect(node, "pruning", len(chosen), "schemas")

    def drop(some: Sequence[Retired], timeout_ms: int) -> dict[Retired, str]:
        [one] = some
        if (outside := _drop_schema(session, one.schema, most, timeout_ms)) is not None:
            return {one: f"{outside} depends on it"}
        progress.advance(node)
        return {}

    def held(some: Sequence[Retired]) -> dict[Retired, Held]:
        locks = blocking.held(session, [one.schema for one in some])
        found = {lock.schema: lock for lock in reversed(locks)}
        return {one: found[one.schema] for one in some if one.schema in found}

    try:
        most = min(lockable(session), _LARGEST_BATCH)
        patient = Patient(drop, held, partial(progress.waits, node), waiting=list(chosen))
        left = patient.singly(time.monotonic() + _PATIENCE_S)
        progress.end(node)
    except psycopg.Error as error:
        raise NodeLost(node, reason_of(error)) from error
    return left


def _drop_schema(session: Connection, schema: str, most: int, timeout_ms: int) -> str | None:
    """Drop a schema; its tables some at a time before it, where it has too many objects.

    Tables are locked first, so that no new object can depend on them. Returns an object outside
    that CASCADE would drop, with which it stays.
    """
    given = {"schema": schema}
    while True:
        tables = [name for (name,) in session.execute(QUERIES["tables"], given)]
        objects, _ = queries.one(session, QUERIES["contents"], given)
        last = not tables or objects <= most
        some = tables if last else tables[: max(1, most * len(tables) // objects)]
        named = [sql.Identifier(schema, name) for name in some]
        with session.transaction():
            session.execute("SELECT set_config('lock_timeout', %s, true)", [f"{timeout_ms}ms"])
            if some:
                locking = sql.SQL("LOCK TABLE ONLY {} IN ACCESS EXCLUSIVE MODE")
                session.execute(locking.format(sql.SQL(", ONLY ").join(named)))
            _, outside = queries.one(session, QUERIES["contents"], given)
            if outside is not None:
                return str(outside)
            if last:
                dropping = sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE")
                session.execute(dropping.format(sql.Identifier(schema)))
                events.record(session, COMMAND, f"dropped {schema}")
            else:
                dropping = sql.SQL("DROP TABLE {} CASCADE")
                session.execute(dropping.format(sql.SQL(", ").join(named)))
        time.sleep(_PAUSE_S)
        if last:
            return None
