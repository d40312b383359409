"""One cutover at a time in a cluster, each made from the newest map (ADR 36).

Moves between other nodes copy and compare meanwhile. But a cutover writes files of the poolers, a
map and a topology file that have all shards: of two at once, one would undo what the other did.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from shardctl.errors import Refused, ShardctlError, together
from shardctl.hosts.reach import host_of
from shardctl.moves import cutover, undoing
from shardctl.moves import plan as planning
from shardctl.moves.context import Use
from shardctl.pgbouncer import apply
from shardctl.provision import maps
from shardctl.state import cluster, journal, ledger, lock, observer
from shardctl.topology import loader, ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from shardctl.moves.context import MoveContext
    from shardctl.postgres.connection import Connection
    from shardctl.state.ledger import Copy
    from shardctl.topology.model import Node, NodeName, ShardId, Topology

Value = TypeVar("Value")

_POLL_S = 0.3
_GUARDS_S = 10.0
"""How long after its longest pause the guards of a cutover have certainly undone it."""


@dataclass(frozen=True, slots=True)
class _Told:
    """What a node tells: who is in a cutover there, its map if it is newer, its journal."""

    holder: str | None
    version: int
    owners: dict[ShardId, NodeName]
    copies: tuple[Copy, ...]


@contextmanager
def turn(context: MoveContext) -> Iterator[None]:
    """Let no other move of the cluster be in its cutover during the block; follow the newest map.

    The turn is a lock on the move's own nodes, beside those that it has, and every move looks for
    it on all nodes when it has its own: of two, the later one finds the earlier. It waits for one
    that is under way. Raises move_unfinished for one that died in its cutover, NodeLost, and what
    `_follow` raises.
    """
    plan = context.plan
    try:
        told = _wait(context, plan.locked)
        if len(told) < len(context.topology.nodes):
            _require_unstaged(context, told)
        _follow(context, told)
        yield
    finally:
        _leave(context, plan.locked)


def undisturbed(topology: Topology, work: Callable[[Topology], Value]) -> Value:
    """Do work that reads map, poolers and topology file; again where a cutover disturbed it.

    While one is under way, these do not agree: what is refused then is tried when it is over, by
    the file as it is then. Raises what `work` raises.
    """
    while True:
        try:
            return work(topology)
        except ShardctlError:
            waited = False
            while _in_cutover(topology):
                waited = True
                time.sleep(_POLL_S)
            now = loader.load_trusted(topology.path)
            if not waited and now == topology:
                raise
            topology = now


def _in_cutover(topology: Topology) -> bool:
    """Return whether a move of the cluster is in its cutover."""
    purpose = lock.purpose("moves")
    asked = observer.ask(topology, lambda one, _: lock.held_by(one, lock.CUTOVER), purpose=purpose)
    return any(asked.values.values())


def _wait(context: MoveContext, nodes: Collection[NodeName]) -> dict[NodeName, _Told]:
    """Wait until no other move is between its fence and the end of its cutover."""
    waited_for, died_at = "", None
    while True:
        holder, told = _enter(context, nodes), _ask(context, nodes)
        holder = holder or next((one.holder for one in told.values() if one.holder), None)
        entries = ledger.entries(copy for one in told.values() for copy in one.copies)
        others = (one for one in entries if one.move.id != context.plan.id)
        between = next((one for one in others if one.changing_hands), None)
        if holder is None and between is None:
            return told
        _leave(context, nodes)
        if between is None or (between.holder and between.move.id in between.holder):
            died_at = None
        else:
            died_at = died_at or time.monotonic()
            undone_s = between.move.plan["options"]["max_pause_s"] + _GUARDS_S
            if time.monotonic() > died_at + undone_s:
                raise ledger.in_the_way(between, ", in its cutover")
        now = holder or (between and f"move {between.move.id}") or ""
        if now != waited_for:
            context.notice(f"waiting for the cutover of {now}")
        waited_for = now
        lock.wait_apart(_POLL_S)


def _require_unstaged(context: MoveContext, told: dict[NodeName, _Told]) -> None:
    """See that no pooler has the file of a move that no node knows: its nodes are away.

    Its guard would put it in place when its target is back. Raises file_staged.
    """
    known = {copy.move.id for one in told.values() for copy in one.copies} | {context.plan.id}
    for pooler in context.topology.poolers.values():
        found = apply.staged_there(pooler, host_of(pooler))
        if strange := apply.in_no_journal(pooler, found, known):
            then = f"`shardctl moves resume {context.plan.id}`"
            raise apply.FileStaged(pooler, strange[0], then=then)


def _enter(context: MoveContext, nodes: Iterable[NodeName]) -> str | None:
    """Take the lock on the move's own nodes; name who has one of them instead."""
    for node in nodes:
        with context.on(node):
            holder = lock.alone(context.session(node, Use.lock), lock.CUTOVER)
        if holder is not None:
            return holder.name
    return None


def _leave(context: MoveContext, nodes: Iterable[NodeName]) -> None:
    for node in nodes:
        if (session := context.open_session(node, Use.lock)) is not None:
            lock.end_cutover(session)


def _ask(context: MoveContext, nodes: Collection[NodeName]) -> dict[NodeName, _Told]:
    """Ask all nodes that answer; raises NodeUnavailable of one without which no move begins."""
    topology = context.topology

    def ask(session: Connection, node: Node) -> _Told:
        row = cluster.read(session) if cluster.is_present(session) else None
        holder = None if node.name in nodes else lock.held_by(session, lock.CUTOVER)
        copies = ledger.copies(session, topology, node.name, row)
        # The map is read last: a move whose cutover is over has written it.
        row = row and cluster.read(session)
        ours = row is not None and (row.cluster, row.node) == (topology.cluster, node.name)
        version = row.map_version if row and ours else 0
        owners = cluster.read_map(session) if version > context.plan.map_version else {}
        return _Told(holder and holder.name, version, owners, copies)

    asked = observer.ask(topology, ask, purpose=context.purpose)
    needed = maps.required(topology, nodes)
    if away := [error for name, error in asked.errors.items() if name in needed]:
        raise together(away)
    return asked.values


def _follow(context: MoveContext, told: dict[NodeName, _Told]) -> None:
    """Let the move follow the newest map, which others have changed since it was planned.

    Poolers, nodes and topology file get the owners of all shards from there. Raises map_changed
    where the move's own shards are elsewhere, nodes_unlisted, NotPromoting.
    """
    plan = context.plan
    version, newest = max((one.version, name) for name, one in told.items())
    if version <= plan.map_version:
        return
    owners = told[newest].owners
    away = [shard for shard in plan.shards if owners.get(shard) != plan.source]
    if away:
        raise Refused(
            "map_changed",
            f"shards {ranges.of(away)} are no longer on node {plan.source}: the map of node "
            f"{newest} has version {version}, and the move was planned with {plan.map_version}",
            hint="undo this move with `shardctl moves abort`",
        )
    context.topology = planning.placed(context.topology, owners)
    context.plan = replace(plan, map_version=version)
    with context.using(plan.source) as source:
        if not journal.follow(source, plan.id, version):
            raise cutover.NotPromoting(plan.id, undoing.state(context))
        known = journal.find(source, plan.id)
        cutover.write_map(context, plan.source, owners, version)
    if plan.streams and known is not None:
        with context.on(plan.target):
            journal.copy(context.session(plan.target), known)
            cutover.write_map(context, plan.target, owners, version)
