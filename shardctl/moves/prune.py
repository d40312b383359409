"""Prune: drop retired schemas, each after a proof that its shard is live on another node.

They are dropped in small transactions that block no other session for long.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from shardctl import fanout
from shardctl.checks.status_look import read_schemas
from shardctl.errors import Unfinished, together
from shardctl.libpq import reason_of
from shardctl.meter import listed, sentences
from shardctl.moves import ledger as ledgers
from shardctl.postgres import blocking, catalog, queries
from shardctl.postgres.connection import NodeLost, NodeUnavailable
from shardctl.postgres.patient import Patient, batches, lockable
from shardctl.state import cluster, events, identity, journal, lock, observer
from shardctl.state.journal import MoveState
from shardctl.state.lock import NodeLocked
from shardctl.topology import names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardctl.errors import ShardctlError
    from shardctl.fanout import Progress
    from shardctl.moves.ledger import Ledger
    from shardctl.postgres.blocking import Held
    from shardctl.postgres.connection import Connection
    from shardctl.state.ledger import Entry
    from shardctl.topology.model import Node, NodeName, ShardId, Topology

QUERIES = queries.load("shardctl.moves", "prune.sql")

COMMAND = "prune"
_WIDTH = 8
_SHOWN = 3
_NAMED = 20
_LOCK_TIMEOUT = "1s"
_LARGEST_BATCH = 200
"""Objects that one transaction drops: its commit invalidates each in all sessions' caches."""
_PAUSE_S = 0.02
"""Pause between transactions, for other sessions' DDL and autovacuum."""
_PATIENCE_S = 10.0
"""How long prune retries a schema in which another session holds a lock."""


class PruneUnfinished(Unfinished):
    """Schemas that could not be dropped; `dropped` are those that were."""

    def __init__(self, left: Mapping[Retired, str], dropped: Sequence[Retired]) -> None:
        whys = [f"node {one.node}: {one.schema}: {why}" for one, why in left.items()]
        super().__init__(
            f"{len(left)} of {len(left) + len(dropped)} retired schemas were not dropped: "
            f"{sentences(whys, most=_SHOWN)}",
            hint="end the sessions or drop the objects named above, then run `shardctl prune` "
            "again: it drops only the rest",
        )
        self.left = dict(left)
        self.dropped = tuple(dropped)


def plan(
    topology: Topology, ledger: Ledger, *, accept_unconfirmed: bool, now: bool, purpose: str
) -> list[Retired]:
    """Check every retired schema, and return whether it may be dropped; changes nothing.

    `now` ignores `retain`. A retired schema is kept while the node that owns its shard cannot be
    reached: only that node can prove that the shard is live there. Raises NodeUnavailable,
    NodeLocked for a node where something may be dropped, and what
    `identity.check` raises, or Problems for several.
    """
    fleet = _look(topology, purpose)
    entries = {entry.move.id: entry for entry in ledger.entries}
    shards = _shards(topology, entries, fleet)
    found = []
    for node, view in fleet.views.items():
        for schema in view.retired:
            objects, _ = view.contents.get(schema, (1, None))
            size, shard = view.sizes.get(schema, 0), shards.get(schema)
            one = Retired(node, schema, shard, _move(schema), objects, size, None)
            why = (
                _why_not_reversed(entries.get(one.move))
                or _why_not_by_move(
                    entries.get(one.move),
                    accept_unconfirmed=accept_unconfirmed,
                    now=None if now else view.clock,
                )
                or _why_not_proved(fleet, entries, one, accept_unconfirmed=accept_unconfirmed)
                or _why_not_unused(view, schema)
            )
            found.append(replace(one, why_not=why))
    concerned = dict.fromkeys(one.node for one in found if one.why_not is None)
    if locked := [error for node in concerned if (error := fleet.views[node].locked)]:
        raise together(locked)
    return found


def carry_out(
    topology: Topology,
    chosen: Sequence[Retired],
    progress: Progress,
    *,
    accept_unconfirmed: bool = False,
) -> None:
    """Drop retired schemas in small transactions, node by node, under the nodes' locks.

    Checks the fleet again under the locks, and the users and dependents of a schema again in the
    transaction that drops it; waits for short queries, as of another prune. Raises NodeLocked and
    what `plan` raises with nothing done; PruneUnfinished and NodeLost when all else is done.
    """
    concerned = {one.node for one in chosen}
    nodes = [name for name in topology.nodes if name in concerned]
    with lock.held(topology, nodes, command=COMMAND) as locks:
        purpose = lock.purpose(COMMAND)
        fleet = _look(topology, purpose)
        known = ledgers.read(topology, purpose=purpose).entries
        entries = {entry.move.id: entry for entry in known}
        left = {
            one: why
            for one in chosen
            if (
                why := _why_not_reversed(entries.get(one.move))
                or _why_not_proved(fleet, entries, one, accept_unconfirmed=accept_unconfirmed)
            )
            is not None
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
            _close(locks, fleet, dropped, known)
    if left:
        errors.append(PruneUnfinished(left, dropped))
    if errors:
        raise together(errors)


def _move(schema: str) -> str:
    """Return the id of the move that retired a schema, from its name."""
    return schema[-8:]


def _shards(topology: Topology, entries: Mapping[str, Entry], fleet: Fleet) -> dict[str, ShardId]:
    """Map retired schemas to their shards, by the names that known moves give."""
    moves = {_move(schema) for view in fleet.views.values() for schema in view.retired}
    return {
        names.retired(topology.schema(shard), move): shard
        for move in moves & entries.keys()
        for shard in topology.owners()
    }


def _why_not_by_move(
    entry: Entry | None, *, accept_unconfirmed: bool, now: datetime | None
) -> str | None:
    """Return why the journal forbids dropping what a move retired, or None."""
    if entry is None:
        return "no move in this cluster's journal retired it"
    move = entry.move
    if entry.state not in ("done", "unconfirmed"):
        return f"move {move.id} is {entry.state}"
    if move.proof == "differs":
        return f"move {move.id} found differences to the target: compare it by hand"
    if move.proof != "compared" and not accept_unconfirmed:
        return f"move {move.id} is unconfirmed (--accept-unconfirmed drops it anyway)"
    if now is not None and entry.due is not None and now < entry.due:
        until = entry.due.astimezone(UTC)
        return f"kept until {until:%Y-%m-%d %H:%M:%S} UTC (--now drops it)"
    return None


def _why_not_reversed(entry: Entry | None) -> str | None:
    """Return why the reverse of a move needs what it retired, or None."""
    reverse = entry.reverse if entry is not None else None
    if entry is None or reverse is None or not reverse.holds:
        return None
    move = entry.move.id
    if reverse.state == "begun":
        return f"move {reverse.move} reverses move {move}"
    until = reverse.until.astimezone(UTC)
    return (
        f"move {move} can be reversed until {until:%Y-%m-%d %H:%M:%S} UTC "
        f"(`shardctl moves finish {move}` gives that up)"
    )


def _why_not_unused(view: View, schema: str) -> str | None:
    """Return what uses a retired schema or depends on it, or None."""
    if schema in view.users:
        return f"{view.users[schema].by} uses it"
    outside = view.contents.get(schema, (0, None))[1]
    return f"{outside} depends on it" if outside is not None else None


def _why_not_proved(
    fleet: Fleet, entries: Mapping[str, Entry], one: Retired, *, accept_unconfirmed: bool
) -> str | None:
    """Return what the proof lacks that a shard's rows are live elsewhere, or None."""
    shard = one.shard
    if shard is None:
        return "it belongs to no shard of this topology"
    # The node's own map has every move of its shards, whatever a node that is away knows.
    owners = {view.map.get(shard) for view in (*fleet.newest, fleet.views[one.node])}
    owner = owners.pop() if len(owners) == 1 else None
    if owner is not None and owner not in fleet.views:
        return f"node {owner} owns shard {shard} in the map, but is unreachable"
    if owner is None or fleet.views[owner].map.get(shard) != owner:
        return f"the nodes' maps disagree about the owner of shard {shard}"
    if owner == one.node:
        why = _why_not_returned(entries, one, shard, accept_unconfirmed=accept_unconfirmed)
        if why is not None:
            return f"this node owns shard {shard} in the map, and {why}"
    if fleet.topology.schema(shard) not in fleet.views[owner].live:
        return f"shard {shard} is not live on node {owner}, which owns it"
    return None


def _why_not_returned(
    entries: Mapping[str, Entry], one: Retired, shard: ShardId, *, accept_unconfirmed: bool
) -> str | None:
    """Return what the proof lacks that a later move has brought a shard back to its node, or None.

    That move made the live schema from another node's copy, and compared both. Without it the
    retired copy may be the only one with the rows, whatever the map says.
    """
    retiring = entries.get(one.move)
    moved = [e for e in entries.values() if shard in e.move.shards and e.state != "aborted"]
    last = max(moved, key=_version, default=None)
    if retiring is None or last is None or _version(last) <= _version(retiring):
        return "no later move in the journals has brought it back"
    if last.move.target != one.node:
        did = "is taking" if last.open else "has taken"
        return f"move {last.move.id} {did} it to node {last.move.target}"
    return _why_not_by_move(last, accept_unconfirmed=accept_unconfirmed, now=None)


def _version(entry: Entry) -> int:
    """Return the map's version when a move was planned: a later move has a higher one."""
    return int(entry.move.plan.get("map_version", 0))


def _close(
    locks: Mapping[NodeName, Connection],
    fleet: Fleet,
    dropped: Sequence[Retired],
    known: Sequence[Entry],
) -> None:
    """Close unconfirmed moves without retired schemas: the operator has accepted them."""
    gone = {(one.node, one.schema) for one in dropped}
    kept = {
        _move(schema)
        for node, view in fleet.views.items()
        for schema in view.retired
        if (node, schema) not in gone
    }
    seen = {
        entry.move.id
        for entry in known
        if entry.state == "unconfirmed"
        and {entry.move.source, entry.move.target} <= fleet.views.keys()
    }
    for move in seen - kept:
        for session in locks.values():
            journal.advance(session, move, [MoveState.unconfirmed], MoveState.done)


@dataclass(frozen=True, slots=True)
class View:
    """One node's map and schemas; facts about retired schemas are by their names.

    `contents` has the number of a schema's objects, and an outside object that CASCADE would drop;
    `users` a lock of a session there; `sizes` its bytes, unless a lock prevented the measurement.
    """

    version: int
    map: Mapping[ShardId, NodeName]
    live: frozenset[str]
    retired: Sequence[str]
    contents: Mapping[str, tuple[int, str | None]]
    users: Mapping[str, Held]
    sizes: Mapping[str, int]
    clock: datetime
    locked: ShardctlError | None = None
    """Why the node cannot be changed at this moment."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """The views of all nodes that could be asked."""

    topology: Topology
    views: Mapping[NodeName, View]

    @property
    def newest(self) -> list[View]:
        """List the views with the newest version of the map."""
        version = max((view.version for view in self.views.values()), default=0)
        return [view for view in self.views.values() if view.version == version]


def _look(topology: Topology, purpose: str) -> Fleet:
    """Query all nodes; some may be unreachable.

    Raises NodeUnavailable where no node that owns shards answers, and what `identity.check` raises,
    or Problems for several.
    """
    asked = observer.ask(topology, partial(_view, topology), purpose=purpose)
    others = [one for one in asked.problems if not isinstance(one, NodeUnavailable)]
    if others or not any(node.name in asked.values for node in topology.owning()):
        asked.every()
    return Fleet(topology, asked.values)


def _view(topology: Topology, session: Connection, node: Node) -> View:
    wanted = [topology.schema(shard) for shard in topology.owners()]
    session.execute("SELECT set_config('lock_timeout', %s, false)", [_LOCK_TIMEOUT])
    state = cluster.read(session) if cluster.is_present(session) else None
    if state is None or identity.is_clone(session, node, state):
        return View(0, {}, frozenset(), (), {}, {}, {}, datetime.now(UTC))
    identity.check(state, topology, node.name)
    retired, clock = session.execute(QUERIES["retired"]).fetchone() or (None, None)
    named = {"schemas": retired or []}
    return View(
        version=state.map_version,
        map=cluster.read_map(session),
        live=frozenset(catalog.present(session, wanted)),
        retired=retired or (),
        contents={
            name: (objects, outside)
            for name, objects, outside in session.execute(QUERIES["contents"], named)
        },
        # Another prune, verify or status measures sizes; a drop waits for it.
        users=_users(session, retired or [], passing=False),
        sizes={name: size or 0 for name, (size, _) in read_schemas(session, []).items()},
        clock=clock or datetime.now(UTC),
        locked=_locked(session, node.name),
    )


def _users(session: Connection, schemas: Sequence[str], *, passing: bool = True) -> dict[str, Held]:
    """Give for each schema the lock of a session there; of one that soon ends only if `passing`."""
    found = blocking.held(session, schemas)
    return {one.schema: one for one in reversed(found) if passing or not one.by.passes}


def _locked(session: Connection, node: NodeName) -> ShardctlError | None:
    try:
        lock.require_free(session, node)
    except NodeLocked as error:
        return error
    return None


@dataclass(frozen=True, slots=True)
class Retired:
    """One retired schema on a node; `why_not` is None when it may be dropped."""

    node: NodeName
    schema: str
    shard: ShardId | None
    move: str
    objects: int
    """How many locks DROP takes."""
    size_bytes: int
    """0 where a lock prevented the measurement; then it is in use."""
    why_not: str | None

    def as_json(self) -> dict[str, Any]:
        """Return it in the shape of docs/reference/json.md."""
        return {
            "node": self.node,
            "schema": self.schema,
            "shard": self.shard,
            "move": self.move,
            "size_bytes": self.size_bytes,
            "refused": self.why_not,
        }


def _drop(
    session: Connection, node: str, chosen: Sequence[Retired], progress: Progress
) -> dict[Retired, str]:
    """Drop schemas of the session's node; return those that remain, and why.

    The session holds the node's lock, in autocommit. What holds up one schema does not hold up
    the others. Raises NodeLost.
    """
    progress.expect(node, "pruning", len(chosen), "schemas")

    def drop(some: Sequence[Retired], timeout_ms: int) -> dict[Retired, str]:
        if some[0].objects > most:  # it is the only one in its batch
            _shrink(session, some[0].schema, most, timeout_ms)
        failed = _transaction(session, some, timeout_ms)
        progress.advance(node, len(some) - len(failed))
        time.sleep(_PAUSE_S)
        return failed

    def held(some: Sequence[Retired]) -> dict[Retired, Held]:
        users = _users(session, [one.schema for one in some])
        return {one: users[one.schema] for one in some if one.schema in users}

    try:
        most = min(lockable(session), _LARGEST_BATCH)
        patient = Patient(drop, held, partial(progress.waits, node))
        for batch in batches(chosen, most, lambda one: one.objects):
            patient.together(batch)
        left = patient.singly(time.monotonic() + _PATIENCE_S)
        progress.end(node)
    except psycopg.Error as error:
        raise NodeLost(node, reason_of(error)) from error
    return left


def _transaction(
    session: Connection, some: Sequence[Retired], timeout_ms: int
) -> dict[Retired, str]:
    """Drop schemas at once, but for those on which an object outside depends; give these, why."""
    with session.transaction():
        schemas = [one.schema for one in some]
        tables = session.execute(QUERIES["tables"], {"schemas": schemas}).fetchall()
        _lock(session, tables, timeout_ms)
        _, outside = _contents(session, schemas)
        if dropped := [schema for schema in schemas if schema not in outside]:
            named = sql.SQL(", ").join(map(sql.Identifier, dropped))
            session.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(named))
            events.record(session, COMMAND, f"dropped {listed(dropped, most=_NAMED)}")
    return {o: f"{outside[o.schema]} depends on it" for o in some if o.schema in outside}


def _shrink(session: Connection, schema: str, most: int, timeout_ms: int) -> None:
    """Drop the tables of a schema in batches, until one transaction can lock the rest."""
    while True:
        objects, outside = _contents(session, [schema])
        leaves = session.execute(QUERIES["leaves"], {"schema": schema}).fetchall()
        if outside or objects <= most or not leaves:
            return
        for few in batches(leaves, most, lambda leaf: leaf[1]):
            tables = [sql.Identifier(schema, name) for name, _ in few]
            with session.transaction():
                _lock(session, [(schema, name) for name, _ in few], timeout_ms)
                if _contents(session, [schema])[1]:
                    return
                session.execute(sql.SQL("DROP TABLE {} CASCADE").format(sql.SQL(", ").join(tables)))
            time.sleep(_PAUSE_S)


def _lock(session: Connection, tables: Sequence[tuple[str, str]], timeout_ms: int) -> None:
    """Take the locks that the drop needs: then no new object can depend on the tables."""
    session.execute("SELECT set_config('lock_timeout', %s, true)", [f"{timeout_ms}ms"])
    if tables:
        named = sql.SQL(", ").join(sql.SQL("ONLY {}").format(sql.Identifier(*t)) for t in tables)
        session.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(named))


def _contents(session: Connection, schemas: Sequence[str]) -> tuple[int, dict[str, str]]:
    """Count the objects of schemas, and name for each an object outside that CASCADE would drop."""
    contents = session.execute(QUERIES["contents"], {"schemas": schemas}).fetchall()
    outside = {schema: found for schema, _, found in contents if found is not None}
    return sum(objects for _, objects, _ in contents), outside
