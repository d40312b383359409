"""Streams of moves that do not flow, and what ended moves have left of theirs."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from shardctl.checks.findings import Finding, Severity
from shardctl.meter import size
from shardctl.state.ledger import kept_reverses

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shardctl.state.ledger import Entry
    from shardctl.state.move_objects import MoveObject, Stream
    from shardctl.topology.model import NodeName

_KINDS = ("subscription", "publication", "origin", "triggers", "role")
"""Slots have findings of their own; rows about streams hold nothing up."""


def judge(
    check: str,
    seen: Mapping[NodeName, tuple[Sequence[MoveObject], Sequence[Stream]]],
    moves: Sequence[Entry],
) -> Iterator[Finding]:
    """Find what is left of ended moves on each node, and streams of open ones that do not flow."""
    entries = {entry.move.id: entry for entry in moves}
    kept = kept_reverses(moves, over=True)
    followed = {
        one.move
        for _, streams in seen.values()
        for one in streams
        if one.kind == "subscription" and one.status == "enabled"
    }
    for node, (objects, streams) in seen.items():
        others = [one for one in objects if one.move not in kept]
        yield from _left(check, node, others, entries)
        for one in streams:
            entry = entries.get(one.move)
            if entry is not None and entry.open:
                of_slot = _slot(check, node, one, followed=one.move in followed)
                yield from of_slot if one.kind == "slot" else _subscription(check, node, one)


def _left(
    check: str, node: NodeName, objects: Sequence[MoveObject], entries: Mapping[str, Entry]
) -> Iterator[Finding]:
    """Report once for each ended or unknown move what a node still has of it."""
    left: dict[str, list[str]] = defaultdict(list)
    for one in objects:
        entry = entries.get(one.move)
        unknown = entry is None and not one.shared
        if one.kind in _KINDS and (unknown or (entry is not None and not entry.open)):
            in_schema = "triggers in schema " if one.kind == "triggers" else f"{one.kind} "
            left[one.move].append(f"{in_schema}{one.name}")
    for move, names in left.items():
        entry = entries.get(move)
        whose = f"a move that is {entry.move.state}" if entry else "a move that no journal has"
        yield Finding(
            check,
            "left_by_move",
            Severity.warning,
            actual=f"left by {whose}: {', '.join(names)}",
            expected="nothing: the move is not open",
            hint="run `shardctl moves doctor` to list and clear it",
            node=node,
            object=move,
        )


def _slot(check: str, node: NodeName, one: Stream, *, followed: bool) -> Iterator[Finding]:
    """Report a stream's slot that has lost its WAL, or that no subscription reads from."""
    if one.status == "lost":
        yield Finding(
            check,
            "stream_slot_lost",
            Severity.error,
            actual=f"the slot of move {one.move} has lost its WAL (max_slot_wal_keep_size or "
            "idle_replication_slot_timeout)",
            expected="a slot that keeps WAL until the target has it",
            hint="run `shardctl moves resume` to copy again, or `shardctl moves abort` to abort it",
            node=node,
            object=one.name,
        )
    elif followed and not one.works:
        yield Finding(
            check,
            "stream_unread",
            Severity.warning,
            actual=f"the subscription of move {one.move} does not read this slot; the target is "
            f"{size(one.lag_bytes or 0)} behind",
            expected="a subscription that reads the slot: until then the source keeps its WAL",
            hint="check the log of the target's server for why the subscription cannot log in or "
            "apply changes",
            node=node,
            object=one.name,
        )


def _subscription(check: str, node: NodeName, one: Stream) -> Iterator[Finding]:
    """Report a subscription that failed, or that is enabled and has no worker."""
    if one.errors:
        yield Finding(
            check,
            "stream_errors",
            Severity.warning,
            actual=f"the worker of move {one.move} has failed {one.errors:,} times",
            expected="a worker that applies every change",
            hint="find the change that it cannot apply in the server's log, and fix the cause: the "
            "worker tries again by itself; or run `shardctl moves abort`",
            node=node,
            object=one.name,
        )
    elif one.status == "enabled" and not one.works:
        yield Finding(
            check,
            "stream_stopped",
            Severity.warning,
            actual=f"the subscription of move {one.move} is enabled, but has no worker",
            expected="a worker that applies the stream",
            hint="check the server's log on that node, and that max_logical_replication_workers "
            "leaves a worker free",
            node=node,
            object=one.name,
        )
