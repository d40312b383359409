"""What moves have left behind: everything on any node that no open move owns.

`clear` drops it, under the locks of the nodes that have it. Nothing of a move is listed as to be
cleared while a journal that may know the move could not be read.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
from psycopg import sql

from shardctl.errors import Incomplete, ShardctlError
from shardctl.libpq import reason_of
from shardctl.moves import marks, prune, stream_claim
from shardctl.moves.prune import View
from shardctl.postgres import slots
from shardctl.postgres.logical import closing, publication, structure, subscription
from shardctl.state import events, leash, lock, move_objects, observer
from shardctl.state import ledger as ledgers
from shardctl.state.journal import MoveState
from shardctl.state.ledger import kept_reverses
from shardctl.state.move_objects import MoveObject, NodeObjects
from shardctl.topology import names
from shardctl.topology.model import ShardId

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from shardctl.postgres.connection import Connection
    from shardctl.state.ledger import Entry, Ledger
    from shardctl.state.move_objects import Kind
    from shardctl.topology.model import Node, NodeName, Topology


COMMAND = "moves doctor"


class Left(NamedTuple):
    """Something that no open move owns; `why_not` says why it is left alone."""

    node: NodeName
    object: MoveObject
    why_not: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Give the shape of docs/reference/json.md."""
        of_object = {"node": self.node, **asdict(self.object)}
        return of_object | {"cleared": self.why_not is None, "why_not": self.why_not}


@dataclass(frozen=True, slots=True)
class Fleet:
    """All nodes and all journals; `unread` are nodes of which either could not be read, and why."""

    topology: Topology
    ledger: Ledger
    views: Mapping[NodeName, View]
    objects: Mapping[NodeName, NodeObjects]
    unread: Mapping[NodeName, str]
    away: frozenset[NodeName] = frozenset()
    """Nodes without shards that cannot be logged in to."""


def look(topology: Topology, *, purpose: str) -> Fleet:
    """Ask all nodes; those that cannot be asked are in the result.

    Raises what `ledger.read` raises.
    """
    asked = observer.ask(topology, partial(_seen, topology), purpose=purpose)
    # A move is in a journal before it makes anything: what was seen is known by now.
    ledger = ledgers.read(topology, purpose=purpose)
    views = {node: view for node, (view, _) in asked.values.items()}
    objects = {node: found for node, (_, found) in asked.values.items()}
    unread = dict(ledger.unread) | asked.unread
    return Fleet(topology, ledger, views, objects, unread, asked.away)


def _seen(topology: Topology, session: Connection, node: Node) -> tuple[View, NodeObjects]:
    view = prune.view_of(topology, session, node)
    return (View(), NodeObjects()) if view is None else (view, move_objects.read(session))


def left(fleet: Fleet) -> list[Left]:
    """List what no open move owns, in the order in which it is cleared; pure."""
    entries = {entry.move.id: entry for entry in fleet.ledger.entries}
    kept = kept_reverses(fleet.ledger.entries)
    found: list[Left] = []
    for node in fleet.objects:
        for one in _made(fleet, node):
            entry = entries.get(one.move)
            if one.move not in kept and (entry is None or not entry.open):
                found.append(Left(node, one, _why_not(fleet, node, one, entry)))
    # Triggers read the rows of their move: these stay with them.
    staying = {(one.node, one.object.move) for one in found if one.why_not is not None}
    for at, left_over in enumerate(found):
        node, one, why_not = left_over
        if one.kind == "records" and why_not is None and (node, one.move) in staying:
            why_not = f"other things of move {one.move} stay on this node"
            found[at] = Left(node, one, why_not)
    order = [*_CLEARING]
    return sorted(found, key=lambda one: (order.index(one.object.kind), one.node, one.object.name))


def _made(fleet: Fleet, node: NodeName) -> list[MoveObject]:
    """Give what moves have made on a node; of a copy its schema.

    A closed copy is more than its triggers: without these it would accept writes. One that is not
    closed so far is known by the journal, where the move has rows on the node: without these it is
    not its own.
    """
    seen, copies, rest = fleet.objects[node], dict[str, MoveObject](), []
    marked = {one.move for one in seen.objects if one.kind in ("triggers", "records")} - seen.open
    for move in (entry.move for entry in fleet.ledger.entries if not entry.open):
        aborted = move.streams and move.state is MoveState.aborted
        if aborted and move.target == node and move.id in marked:
            for schema in fleet.views[node].live.intersection(move.schemas):
                copies[schema] = MoveObject("schema", schema, move.id)
    for one in seen.objects:
        # A retired copy is closed for a reverse, and prune drops it.
        if one.kind == "triggers" and one.move in marked and not names.is_retired(one.name):
            copies[one.name] = replace(one, kind="schema", detail="closed copy")
        else:
            rest.append(one)
    return [*rest, *copies.values()]


def _why_not(fleet: Fleet, node: NodeName, one: MoveObject, entry: Entry | None) -> str | None:
    """Say why something is left alone, or None."""
    missing: set[str] = set(fleet.unread)
    if entry is not None:
        missing = {entry.move.source, entry.move.target} & (missing | fleet.away)
    if missing:
        name = min(missing)
        return f"the journal of node {name} could not be read, and may have move {one.move} open"
    if entry is None and one.shared:
        return (
            "it is the whole server's, and no journal of this cluster knows its move: another "
            "cluster's may; drop it by hand"
        )
    if one.kind == "schema":
        return _why_not_dropped(fleet, node, one.name)
    return None


def _why_not_dropped(fleet: Fleet, node: NodeName, schema: str) -> str | None:
    """Say what is missing of the proof that a schema is a copy, and its shard elsewhere."""
    topology = fleet.topology
    number = topology.schema_pattern.shard(schema)
    if number is None or number not in topology.owners():
        return "it is not the schema of a shard in this topology"
    shard = ShardId(number)
    if fleet.unread:
        return f"node {min(fleet.unread)} could not be read, and may have the shard"
    if any(entry.open and shard in entry.move.shards for entry in fleet.ledger.entries):
        return f"shard {shard} is in an open move"
    if fleet.views[node].map.get(shard) == node:
        return f"the map gives shard {shard} to this node"
    return prune.why_not_live(topology, fleet.views, node, shard)


_LOCK_TIMEOUT = "5s"
_TRIGGERS_S = 10.0


def clear(topology: Topology, chosen: Sequence[Left], report: Callable[[Left], None]) -> None:
    """Drop what is chosen and no open move owns once the nodes' locks are held.

    `report` gets each thing that was dropped. What a running command holds, and what has an owner
    by now, stays. Raises NodeLocked with nothing done, left_uncleared when all else is done.
    """
    concerned = {one.node for one in chosen}
    nodes = [name for name in topology.nodes if name in concerned]
    with lock.held(topology, nodes, command=COMMAND) as sessions:
        fleet = look(topology, purpose=lock.purpose(COMMAND))
        wanted = {(one.node, one.object.kind, one.object.name) for one in chosen}
        errors: list[str] = []
        # What comes later of a move on a node may be read by what stays, as rows are by triggers.
        failed: set[tuple[str, str]] = set()
        for session in sessions.values():
            session.execute("SELECT set_config('lock_timeout', %s, false)", [_LOCK_TIMEOUT])
        for one in left(fleet):
            named = (one.node, one.object.kind, one.object.name)
            moved = (one.node, one.object.move)
            if one.why_not is not None or named not in wanted or moved in failed:
                continue
            try:
                _drop(sessions[one.node], one.object)
            except (psycopg.Error, ShardctlError) as error:
                reason = reason_of(error) if isinstance(error, psycopg.Error) else error.message
                errors.append(f"node {one.node}: {one.object.kind} {one.object.name}: {reason}")
                failed.add(moved)
            else:
                report(one)
    if errors:
        raise Incomplete(
            "left_uncleared",
            "; ".join(errors),
            hint="correct what they name, then `shardctl moves doctor` again: it clears the rest",
        )


def _drop(session: Connection, one: MoveObject) -> None:
    """Drop one thing, if it is there, and write down that it was."""
    _CLEARING[one.kind](session, one)
    events.record(session, COMMAND, f"cleared {one.kind} {one.name} of move {one.move}")


def _slot(session: Connection, one: MoveObject) -> None:
    leash.end(session, one.name)
    slots.drop(session, one.name)


def _triggers(session: Connection, one: MoveObject) -> None:
    closing.remove(session, one.move, deadline=time.monotonic() + _TRIGGERS_S)


def _records(session: Connection, one: MoveObject) -> None:
    marks.forget(session, one.move)
    _triggers(session, one)  # the row that they read goes with the last


_CLEARING: dict[Kind, Callable[[Connection, MoveObject], object]] = {
    "subscription": lambda session, one: subscription.drop(session, one.name),
    "slot": _slot,
    "publication": lambda session, one: publication.drop(session, one.name),
    "triggers": _triggers,
    "schema": lambda session, one: structure.drop(session, [one.name]),
    "function": lambda session, one: session.execute(
        stream_claim.QUERIES["drop_claim"].format(name=sql.Identifier(one.name))
    ),
    "role": lambda session, one: subscription.drop_login(session, one.name),
    "records": _records,
}
"""What uses another thing goes before it."""
