"""Going on, or back, when a node of a move is no more: only the other one has the shards."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from shardctl.access import fence
from shardctl.errors import ShardctlError, together
from shardctl.hosts import files, ports
from shardctl.hosts.host import HostUnreachable
from shardctl.hosts.reach import host_of
from shardctl.moves import cloned
from shardctl.moves.gates import Gates
from shardctl.pgbouncer import render
from shardctl.pgbouncer.console import Console
from shardctl.postgres import clone as clones
from shardctl.postgres import timeline
from shardctl.postgres.connection import NodeUnavailable, connect
from shardctl.provision import maps
from shardctl.topology.model import NodeName

if TYPE_CHECKING:
    from shardctl.moves.context import MoveContext
    from shardctl.postgres.clone import Clone
    from shardctl.state.journal import Move
    from shardctl.topology.model import Pooler, Topology

_SECONDS = 30.0
_TIMELINE = "SELECT timeline_id FROM pg_control_checkpoint()"


class TargetThere(ShardctlError):
    """A target that is said to be destroyed, and is there."""

    def __init__(self, node: str, what: str) -> None:
        super().__init__(
            f"node {node} is not destroyed: {what}",
            hint="`shardctl moves resume` finishes the move; if the node must not serve again, "
            "stop its server, then abort with --target-destroyed",
        )
        self.node = node


class TargetServed(ShardctlError):
    """A pooler that leads clients to a target which is no more: it had claimed the shards."""

    def __init__(self, pooler: str, node: str, what: str) -> None:
        super().__init__(
            f"pooler {pooler}: {what}: so node {node} owned the shards, and may have acknowledged "
            "writes that are nowhere else",
            hint=f"bring node {node} back, as from its disk, then `shardctl moves resume`; if all "
            "that was written there is given up, `shardctl pgbouncer apply --force` first",
        )
        self.pooler = pooler
        self.node = node


class PoolerUnasked(ShardctlError):
    """A pooler that does not tell whether it has led clients to a target which is no more."""

    def __init__(self, pooler: str, node: str, error: ShardctlError) -> None:
        super().__init__(
            f"nobody can tell whether pooler {pooler} has led clients to node {node}: "
            f"{error.message}",
            hint="start it; if it is gone for good, and you know that it has not, take it out of "
            "the topology",
        )
        self.pooler = pooler
        self.node = node


class SourceNeeded(ShardctlError):
    """A move that cannot go on without its source: its target does not own the shards."""

    def __init__(self, move: str, node: str, state: str) -> None:
        super().__init__(
            f"move {move} is {state}: it goes on without node {node} only when its target has "
            "claimed the shards",
            hint="`shardctl moves resume` without --source-destroyed goes as far as it can",
        )


class SourceThere(ShardctlError):
    """A source that is said to be destroyed, and is there."""

    def __init__(self, node: str, what: str) -> None:
        super().__init__(
            f"node {node} is not destroyed: {what}",
            hint="`shardctl moves resume` without --source-destroyed finishes the move; another "
            "server in its place has to be stopped until that has ended",
        )
        self.node = node


def take_back(context: MoveContext) -> None:
    """Give the source its shards back, in journal state `undone`; nothing else is done.

    That the target is no more is the operator's word, as far as nobody here can see it. A clone
    that is there must be stopped and never have been promoted; it is deleted first, so that it
    cannot be any more. Raises TargetThere, TargetServed and PoolerUnasked, OwnershipDiffers where
    other nodes were told that the target owns the shards, and what `clones.remove`,
    `Gates.let_go` and `fence.take_back` raise.
    """
    source = context.plan.source
    there = require_gone(context)
    # The guards are ended first, for they might yet lead clients to it.
    with Gates(context.topology, context.after, context.plan, purpose=context.purpose) as gates:
        gates.let_go()
    _require_unled(context)
    if there is not None:
        clones.remove(there)
    with context.on(source):
        deadline = time.monotonic() + _SECONDS
        fence.take_back(context.session(source), source, context.plan.id, deadline=deadline)


def require_source_gone(topology: Topology, move: Move, *, purpose: str) -> None:
    """See that a move may end without its source: that the target owns the shards.

    That the source is no more is the operator's word, as far as nothing listens there. Raises
    SourceNeeded, SourceThere.
    """
    source = topology.nodes[NodeName(move.source)]
    if not move.state.claimed_by_target:
        raise SourceNeeded(move.id, source.name, move.state.value)
    try:
        connect(source, topology.database, purpose=purpose).close()
    except NodeUnavailable as error:
        if ports.knock(source.host, source.port) == "open":
            raise SourceThere(source.name, f"a server is there: {error.reason}") from error
    else:
        raise SourceThere(source.name, "its server answers")


def require_gone(context: MoveContext) -> Clone | None:
    """See that the target cannot have claimed; give its clone where that is there yet.

    Changes nothing. Raises TargetThere, TargetServed, PoolerUnasked and OwnershipDiffers.
    """
    maps.version(context.topology, purpose=context.purpose)
    there = _unpromoted(context)
    _require_unled(context)
    return there


def _unpromoted(context: MoveContext) -> Clone | None:
    """Give the clone where it is there yet; raises TargetThere where it serves or was promoted."""
    target = context.plan.target
    try:
        context.session(target)
    except NodeUnavailable:
        pass
    else:
        raise TargetThere(target, "its server answers")
    if ports.knock(context.target.host, context.target.port) == "open":
        raise TargetThere(target, "somebody listens at its port, and lets nobody in from here")
    try:
        clone = cloned.of(context)
        if clones.look(clone) == "absent":
            return None
    except (HostUnreachable, clones.TargetNotEmpty, clones.CloneOfAnother):
        return None  # another machine, or what somebody has put in its place
    if clone.server.running():
        raise TargetThere(target, f"its server runs in {clone.server.data_directory}")
    there = timeline.control_data(clone.machine, clone.server).timeline
    with context.on(context.plan.source):
        row = context.session(context.plan.source).execute(_TIMELINE).fetchone()
    if row is None or there != row[0]:
        raise TargetThere(target, f"{clone.server.data_directory} was promoted")
    return clone


def _require_unled(context: MoveContext) -> None:
    """See that no pooler has led clients to the target, which only one that had claimed is for.

    Raises TargetServed and PoolerUnasked, or Problems of several.
    """
    target = context.plan.target
    problems: list[ShardctlError] = []
    for pooler in context.topology.poolers.values():
        try:
            led = _led(context, pooler)
        except ShardctlError as error:
            problems.append(PoolerUnasked(pooler.name, target, error))
        else:
            if led is not None:
                problems.append(TargetServed(pooler.name, target, led))
    if problems:
        raise together(problems)


def _led(context: MoveContext, pooler: Pooler) -> str | None:
    """Say by what a pooler leads clients to the target, or None."""
    target, topology = context.target, context.topology
    with Console(pooler, topology.database, purpose=context.purpose) as console:
        offered = console.databases()
    for name in context.plan.schemas if "shard" in pooler.aliases else ():
        alias = offered.get(name)
        if alias and (alias.host, alias.port) == (target.pooler_host, target.port):
            return f"{name} leads to node {target.name}"
    # Aliases of nodes do not change; that the file was replaced tells it all the same.
    text = files.read(host_of(pooler), pooler.databases_file, user=pooler.os_user)
    header = render.header(text or "")
    if header is not None and header.map_version > context.plan.map_version:
        return f"its file is of map version {header.map_version}"
    return None
