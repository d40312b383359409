"""Nodes that are to be empty: rebalances give them no shards until that is cancelled."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from shardctl.balance import carry
from shardctl.errors import Incomplete, Refused, UsageError, together
from shardctl.state import lock, rebalances
from shardctl.state.rebalances import Drain, GroupState

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardctl.balance.group import GroupPlan
    from shardctl.state.rebalances import Known
    from shardctl.topology.model import Topology


def begin(topology: Topology, node: str, known: Known, *, command: str) -> None:
    """Let a node get no more shards; raises what `rebalances.write` raises."""
    if node not in known.drained:
        record = _next(node, known, is_active=True)
        rebalances.write(topology, record, command=command, result=f"node {node} gets no shards")


def require_cancellable(topology: Topology, node: str, *, command: str) -> Known:
    """See that a node is drained; raises UsageError, not_drained, and NodeUnavailable."""
    if node not in topology.nodes:
        raise UsageError(f"unknown node {node!r}", hint=f"nodes: {', '.join(topology.nodes)}")
    known = rebalances.read(topology, purpose=lock.purpose(command))
    if known.unread:
        raise together(list(known.unread))
    if node not in known.drained:
        raise Refused(
            "not_drained",
            f"node {node} is not drained",
            hint="run `shardctl status` to see which nodes are",
        )
    return known


def cancel(
    topology: Topology,
    node: str,
    known: Known,
    *,
    notice: Callable[[str], None],
    command: str,
) -> None:
    """Let a node have shards again; an open rebalance that empties it ends before its next move."""
    record = _next(node, known, is_active=False)
    rebalances.write(topology, record, command=command, result=f"node {node} can have shards again")
    row = known.open
    if row is not None and carry.plan_of(row).drain == node:
        carry.set_state(topology, row, GroupState.aborted, notice, command)
        notice(f"rebalance {row.id}, which drains node {node}, ends before its next move")


def forget(topology: Topology, node: str, known: Known, *, command: str) -> None:
    """Let no later node of this name begin drained; raises what `rebalances.write` raises.

    The row stays as that of a cancelled drain: a node that is away has an older one, and without
    a newer one that would count again.
    """
    if node in known.drained:
        record = _next(node, known, is_active=False)
        result = f"node {node} leaves the fleet: its drain ends"
        rebalances.write(topology, record, command=command, result=result)


def rename(topology: Topology, old: str, new: str, known: Known, *, command: str) -> None:
    """Let the new name of a node be drained where the old one was; raises as `forget` does.

    The new name is first: when this is killed, the node is still drained.
    """
    if (drain := known.drained.get(old)) is None:
        return
    if new not in known.drained:
        record = replace(_next(new, known, is_active=True), who=drain.who, at=drain.at)
        rebalances.write(topology, record, command=command, result=f"node {new} gets no shards")
    forget(topology, old, known, command=command)


def require_drained(plan: GroupPlan) -> None:
    """See that a plan has left no shard behind; raises not_empty."""
    if plan.stuck:
        listed = ", ".join(str(one.shard) for one in plan.stuck)
        raise Incomplete(
            "not_empty",
            f"node {plan.drain} still has shards {listed}: no other node has room for them",
            hint="add a node or free space, then run `shardctl node drain` again; rebalances "
            "give it no shards",
        )


def _next(node: str, known: Known, *, is_active: bool) -> Drain:
    last = known.last.get(node)
    revision = 1 if last is None else last.revision + 1
    return Drain(node, revision, is_active, lock.who(), datetime.now(UTC))
