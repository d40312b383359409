"""Prune: drop retired schemas, each after a proof that its shard is live on another node."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from shardctl import fanout
from shardctl.errors import Unfinished, together
from shardctl.meter import sentences
from shardctl.moves import ledger as ledgers
from shardctl.moves import prune_drop, prune_look
from shardctl.moves.prune_drop import Retired
from shardctl.state import journal, lock
from shardctl.state.journal import MoveState
from shardctl.topology import names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardctl.fanout import Progress
    from shardctl.moves.ledger import Ledger
    from shardctl.moves.prune_look import Fleet, View
    from shardctl.postgres.connection import Connection
    from shardctl.state.ledger import Entry
    from shardctl.topology.model import NodeName, ShardId, Topology

COMMAND = "prune"
_WIDTH = 8
_SHOWN = 3


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
    NodeLocked and EventTriggerRefuses for a node where something may be dropped, and what
    `identity.check` raises, or Problems for several.
    """
    fleet = prune_look.look(topology, purpose)
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
        fleet = prune_look.look(topology, purpose)
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
            lambda name: prune_drop.run(
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
        return f"move {last.move.id} has taken it to node {last.move.target} since"
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
