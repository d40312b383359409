"""Finishing or aborting a move whose source or target is destroyed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from shardctl.access import fence
from shardctl.errors import ShardctlError, together
from shardctl.hosts import files, ports
from shardctl.hosts.reach import host_of
from shardctl.moves.paused_poolers import PausedPoolers
from shardctl.pgbouncer import render
from shardctl.pgbouncer.console import Console
from shardctl.postgres.connection import NodeUnavailable, connect
from shardctl.provision import maps, refusals
from shardctl.state import observer
from shardctl.topology.model import NodeName

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardctl.moves.context import MoveContext
    from shardctl.state.journal import Move
    from shardctl.topology.model import Pooler, Topology

_SECONDS = 30.0


class TargetThere(ShardctlError):
    """A target that was declared destroyed, but exists."""

    def __init__(self, node: str, what: str) -> None:
        super().__init__(
            f"node {node} is not destroyed: {what}",
            hint="run `shardctl moves resume` to finish the move; if the node must not serve "
            "again, stop its server, then run `shardctl moves abort --target-destroyed`",
        )
        self.node = node


class TargetServed(ShardctlError):
    """A pooler that routed clients to a destroyed target, which had claimed the shards."""

    def __init__(self, pooler: str, node: str, what: str) -> None:
        super().__init__(
            f"pooler {pooler}: {what}: node {node} owned the shards, and may have acknowledged "
            "writes that exist nowhere else",
            hint=f"recover node {node}, for example from its disk, then run `shardctl moves "
            "resume`; to give up what was written there, run `shardctl pgbouncer apply --force` "
            "first",
        )
        self.pooler = pooler
        self.node = node


class PoolerUnasked(ShardctlError):
    """A pooler that cannot be asked whether it routed clients to a destroyed target."""

    def __init__(self, pooler: str, node: str, error: ShardctlError) -> None:
        super().__init__(
            f"cannot check whether pooler {pooler} has routed clients to node {node}: "
            f"{error.message}",
            hint=f"start pooler {pooler}; if it is permanently lost and never routed clients "
            "there, remove it from the topology",
        )
        self.pooler = pooler
        self.node = node


class SourceNeeded(ShardctlError):
    """A move that cannot go on without its source: its target does not own the shards."""

    def __init__(self, move: str, node: str, state: str) -> None:
        super().__init__(
            f"move {move} is {state}: its target has not claimed the shards, so it cannot finish "
            f"without node {node}",
            hint="run `shardctl moves resume` without --source-destroyed, which continues as far "
            "as it can",
        )


class SourceThere(ShardctlError):
    """A source that was declared destroyed, but exists."""

    def __init__(self, node: str, what: str) -> None:
        super().__init__(
            f"node {node} is not destroyed: {what}",
            hint="run `shardctl moves resume` without --source-destroyed; if it is another server "
            "in the node's place, stop that server until the move has ended",
        )
        self.node = node


def take_back(context: MoveContext) -> None:
    """Give the source its shards back, in journal state `undone`; change nothing else.

    The operator has declared the target destroyed; shardctl checks what it can. A clone that exists
    must be stopped and never have been promoted; it is deleted first, so that it cannot be promoted
    later. Raises TargetThere, TargetServed and PoolerUnasked, OwnershipDiffers where other nodes'
    maps say that the target owns the shards, and what the removal of the copy,
    `PausedPoolers.let_go` and `fence.take_back` raise.
    """
    source = context.plan.source
    remove = require_gone(context)
    # End the guards first: they might still route clients to it.
    with PausedPoolers(
        context.topology, context.after, context.plan, purpose=context.purpose
    ) as pauses:
        pauses.let_go()
    _require_unled(context)
    if remove is not None:
        remove()
    with context.on(source):
        deadline = time.monotonic() + _SECONDS
        fence.take_back(context.session(source), source, context.plan.id, deadline=deadline)


def require_source_gone(topology: Topology, move: Move, *, purpose: str) -> None:
    """Check that a move may end without its source: the target must own the shards.

    The operator has declared the source destroyed; nothing may listen at its address. Raises
    SourceNeeded, SourceThere.
    """
    source = topology.nodes[NodeName(move.source)]
    if not move.state.claimed_by_target:
        raise SourceNeeded(move.id, source.name, move.state.value)
    try:
        connect(source, topology.database, purpose=purpose).close()
    except NodeUnavailable as error:
        if ports.knock(source.host, source.port) == "open":
            raise SourceThere(source.name, f"its port is open: {error.reason}") from error
    else:
        raise SourceThere(source.name, "its server answers")


def require_gone(context: MoveContext) -> Callable[[], object] | None:
    """Check that the target cannot have claimed; return what deletes its copy if that exists.

    Changes nothing. Raises TargetThere, TargetServed, PoolerUnasked and OwnershipDiffers.
    """
    _require_unclaimed(context)
    require_silent(context)
    remove = context.method.handover.remains(context)
    _require_unled(context)
    return remove


def _require_unclaimed(context: MoveContext) -> None:
    """Check that no other node's map has the claim; raises OwnershipDiffers, NodeUnavailable."""
    topology, target = context.topology, context.target
    if not target.shards:
        maps.version(topology, purpose=context.purpose)
        return
    # The target is destroyed, although it owns shards.
    others = [node for node in topology.nodes.values() if node is not target]
    asked = observer.ask(topology, maps.said, purpose=context.purpose, nodes=others)
    if problems := [*asked.problems, *refusals.ownership(topology, asked.values)]:
        raise together(problems)


def require_silent(context: MoveContext) -> None:
    """Check that no server answers at the target's address; raises TargetThere."""
    target = context.plan.target
    try:
        context.session(target)
    except NodeUnavailable:
        pass
    else:
        raise TargetThere(target, "its server answers")
    if ports.knock(context.target.host, context.target.port) == "open":
        raise TargetThere(target, "its port is open, but the server rejects logins from here")


def _require_unled(context: MoveContext) -> None:
    """Check that no pooler has routed clients to the target: then it had claimed the shards.

    Raises TargetServed and PoolerUnasked, or Problems for several.
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
    """Return how a pooler routes clients to the target, or None."""
    target, topology = context.target, context.topology
    with Console(pooler, topology.database, purpose=context.purpose) as console:
        offered = console.databases()
    for name in context.plan.schemas if "shard" in pooler.aliases else ():
        alias = offered.get(name)
        if alias and (alias.host, alias.port) == (target.pooler_host, target.port):
            return f"alias {name} leads to node {target.name}"
    # Aliases of nodes do not change: the file's map version shows that it was replaced.
    text = files.read(host_of(pooler), pooler.databases_file, user=pooler.os_user)
    header = render.header(text or "")
    if header is not None and header.map_version > context.plan.map_version:
        return f"its file has map version {header.map_version}"
    return None
