"""Moves that can be reversed, and leftovers of those that no longer can."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC
from typing import TYPE_CHECKING

from shardctl.checks.findings import Finding, Severity
from shardctl.meter import size
from shardctl.state import leash
from shardctl.topology.model import NodeName, ShardId

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardctl.state.ledger import Entry
    from shardctl.state.reverses import Reverse


def judge(check: str, moves: Sequence[Entry]) -> Iterator[Finding]:
    """Find moves of which something is kept for a reverse."""
    for entry in moves:
        reverse = entry.reverse
        if reverse is None or not reverse.can:
            continue
        move, found = entry.move, _found(check, entry.move.id, reverse)
        yield replace(
            found,
            actual=f"from {move.source} to {move.target}: {found.actual}",
            node=NodeName(move.target),
            shards=tuple(ShardId(shard) for shard in move.shards),
            object=move.id,
        )
        if reverse.state == "open":
            yield from _unbounded(check, entry, reverse)


def _found(check: str, move: str, reverse: Reverse) -> Finding:
    """Report until when a move can be reversed, or why it cannot be any more."""
    until = f"{reverse.until.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    if reverse.state == "open":
        return Finding(
            check,
            "reverse_open",
            Severity.note,
            actual=f"can be reversed until {until}{_held(reverse)}",
            expected="nothing is kept for a reverse, after `shardctl moves finish`",
            hint=f"run `shardctl moves finish {move}` when the move need not be reversed",
        )
    drop = f"run `shardctl moves finish {move}` to drop what is left"
    if reverse.state == "expired":
        return Finding(
            check,
            "reverse_expired",
            # A slot whose guard has ended still keeps WAL.
            Severity.note if reverse.held_bytes is None else Severity.warning,
            actual=f"could be reversed until {until}{_held(reverse)}",
            expected="nothing is kept for a reverse",
            hint=drop,
        )
    return Finding(
        check,
        "reverse_lost",
        Severity.warning,
        actual=f"cannot be reversed, because slot {reverse.slot} was dropped (at its limit of "
        "WAL) or has lost its WAL",
        expected="a slot that keeps what a reverse needs, or nothing",
        hint=drop,
    )


def _held(reverse: Reverse) -> str:
    if reverse.held_bytes is None:
        return ""
    return f"; slot {reverse.slot} retains {size(reverse.held_bytes)} of WAL"


def _unbounded(check: str, entry: Entry, reverse: Reverse) -> Iterator[Finding]:
    move, limit = entry.move, reverse.limit_bytes
    if reverse.held_bytes is None:
        return
    if not reverse.watched:
        yield Finding(
            check,
            "slot_unwatched",
            Severity.warning,
            actual=f"slot for the reverse of move {move.id} retains {size(reverse.held_bytes)} of "
            "WAL, and its guard is not running (a server restart ends the guard)",
            expected="a guard that drops the slot before it fills the disk, and when its time is "
            "over",
            hint="run `shardctl moves doctor`: it starts the guard again; or run `shardctl moves "
            f"finish {move.id}` to drop the slot",
            node=NodeName(move.target),
            object=reverse.slot,
        )
    elif leash.is_near(reverse.held_bytes, limit):
        yield Finding(
            check,
            "slot_near_limit",
            Severity.warning,
            actual=f"slot for the reverse of move {move.id} retains {size(reverse.held_bytes)} of "
            f"WAL; at {size(limit)} the server drops it, and the move cannot be reversed",
            expected="less than half of the limit",
            hint=f"run `shardctl moves reverse {move.id}` or `shardctl moves finish {move.id}`",
            node=NodeName(move.target),
            object=reverse.slot,
        )
