"""Streams of moves that do not flow, and what ended moves have left of theirs."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from shardctl.checks.check import ERROR, WARNING, Rule, Rules
from shardctl.state.ledger import kept_reverses

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shardctl.checks.check import Finding
    from shardctl.state.ledger import Entry
    from shardctl.state.move_objects import MoveObject, Stream
    from shardctl.topology.model import NodeName

_KINDS = ("subscription", "publication", "triggers", "role")
"""Slots have findings of their own; rows about streams hold nothing up."""

RULES = Rules(
    "leftovers",
    {
        "left_by_move": Rule(
            WARNING,
            "left by a move that {state}: {names}",
            "nothing: the move is not open",
            "run `shardctl moves doctor` to list and clear it",
        ),
        "stream_slot_lost": Rule(
            ERROR,
            "the slot of move {move} has lost its WAL (max_slot_wal_keep_size or "
            "idle_replication_slot_timeout)",
            "a slot that keeps WAL until the target has it",
            "run `shardctl moves resume` to copy again, or `shardctl moves abort` to abort it",
        ),
        "stream_unread": Rule(
            WARNING,
            "the subscription of move {move} does not read this slot; the target is {lag_bytes} "
            "behind",
            "a subscription that reads the slot: until then the source keeps its WAL",
            "check the log of the target's server for why the subscription cannot log in or apply "
            "changes",
        ),
        "stream_errors": Rule(
            WARNING,
            "the worker of move {move} has failed {errors:,} times",
            "a worker that applies every change",
            "find the change that it cannot apply in the server's log, and fix the cause: the "
            "worker tries again by itself; or run `shardctl moves abort`",
        ),
        "stream_stopped": Rule(
            WARNING,
            "the subscription of move {move} is enabled, but has no worker",
            "a worker that applies the stream",
            "check the server's log on that node, and that max_logical_replication_workers leaves "
            "a worker free",
        ),
    },
)


def judge(
    seen: Mapping[NodeName, tuple[Sequence[MoveObject], Sequence[Stream]]], moves: Sequence[Entry]
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
        yield from _left(node, others, entries)
        for one in streams:
            entry = entries.get(one.move)
            if entry is None or not entry.open:
                continue
            if code := _fault(one, followed=one.move in followed):
                yield RULES.finding(
                    code,
                    node=node,
                    object=one.name,
                    move=one.move,
                    lag_bytes=one.lag_bytes or 0,
                    errors=one.errors,
                )


def _fault(one: Stream, *, followed: bool) -> str | None:
    """Name what is wrong with a slot or subscription: it lost its WAL, is not read, or fails."""
    if one.kind == "slot":
        unread = followed and not one.works
        return "stream_slot_lost" if one.status == "lost" else "stream_unread" if unread else None
    if one.errors:
        return "stream_errors"
    return "stream_stopped" if one.status == "enabled" and not one.works else None


def _left(
    node: NodeName, objects: Sequence[MoveObject], entries: Mapping[str, Entry]
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
        state = f"is {entry.move.state}" if entry else "no journal has"
        yield RULES.finding(
            "left_by_move", node=node, object=move, state=state, names=", ".join(names)
        )
