"""Moves that are unfinished or ended badly, and what they leave to be pruned."""

from __future__ import annotations

from datetime import UTC
from itertools import groupby
from typing import TYPE_CHECKING, Any

from shardctl.checks import retired
from shardctl.checks.findings import Finding, Severity
from shardctl.meter import duration, size
from shardctl.topology.model import ShardId

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from datetime import datetime

    from shardctl.checks.check import View
    from shardctl.checks.retired import Retired
    from shardctl.state.ledger import Entry
    from shardctl.topology.model import NodeName, Topology

NAME = "leftovers"


def judge(
    view: View[Any],
    kept: Mapping[NodeName, Collection[Retired]],
    held_bytes: Mapping[str, int | None],
) -> Iterator[Finding]:
    """Find moves that are unfinished or ended badly, and the retired schemas of the rest.

    `kept` are each node's retired schemas that its journal explains, `held_bytes` the WAL that
    moves' slots hold back, by the slots' names.
    """
    left = {one.move for found in kept.values() for one in found}
    for entry in view.moves:
        if entry.state == "running":
            yield _running(entry)
        elif entry.open:
            yield _unfinished(entry, held_bytes.get(entry.slot))
        elif entry.state == "unconfirmed" and entry.move.id in left:
            differs = entry.move.proof == "differs"
            yield _differing(entry) if differs else _unconfirmed(entry)
    moves = {entry.move.id: entry for entry in view.moves}
    for node, found in kept.items():
        ordered = sorted(found, key=lambda one: (one.move, one.schema))
        for move, group in groupby(ordered, key=lambda one: one.move):
            if (entry := moves[move]).due is not None:
                yield _retired(view.topology, node, entry, list(group))


def _running(entry: Entry) -> Finding:
    """Report a running move."""
    move = entry.move
    return Finding(
        NAME,
        "move_running",
        Severity.note,
        actual=f"from {move.source} to {move.target}, {_state(entry)}: "
        f"{entry.holder} is running it",
        expected="a move that ends",
        hint=f"run `shardctl moves show {move.id}` to see its phase",
        shards=_shards(entry),
        object=move.id,
    )


def _unfinished(entry: Entry, held_bytes: int | None) -> Finding:
    """Report an interrupted move."""
    move = entry.move
    held = f"; its slot retains {size(held_bytes)} of WAL" if held_bytes else ""
    if limit := entry.wal_limit:
        held = (
            f"; its slot retained {size(limit['held_bytes'])} of WAL, more than the limit of "
            f"{size(limit['limit_bytes'])}, and was dropped"
        )
    abort = f", or `shardctl moves abort {move.id}` to abort it" if "abort" in entry.can() else ""
    return Finding(
        NAME,
        "move_unfinished",
        # Up to the fence the source serves its shards as ever, and behind the cutover the target.
        Severity.error if entry.changing_hands else Severity.warning,
        actual=f"unfinished, {_state(entry)}: from {move.source} to {move.target}, started by "
        f"{move.who} on {_at(move.started)}{held}",
        expected="a running or finished move",
        hint=f"run `shardctl moves resume {move.id}` to continue it{abort}",
        shards=_shards(entry),
        object=move.id,
    )


def _differing(entry: Entry) -> Finding:
    """Report a finished move whose copies differ."""
    move = entry.move
    tables = ", ".join((move.report or {}).get("differing", ())) or "some tables"
    return Finding(
        NAME,
        "copies_differ",
        Severity.error,
        actual=f"from {move.source} to {move.target}: the copies of {tables} differ",
        expected="equal copies on source and target",
        hint="compare the tables with the retired copies (`shardctl prune` keeps them); if "
        "the target is correct, drop the retired copies by hand",
        shards=_shards(entry),
        object=move.id,
    )


def _unconfirmed(entry: Entry) -> Finding:
    """Report a finished move whose copies were not compared."""
    move = entry.move
    return Finding(
        NAME,
        "move_unconfirmed",
        Severity.warning,
        actual=f"unconfirmed: rows were not compared after the move from {move.source} to "
        f"{move.target}",
        expected="compared rows",
        hint="if you trust the target, run `shardctl prune --accept-unconfirmed` to drop "
        "the retired schemas",
        shards=_shards(entry),
        object=move.id,
    )


def _retired(topology: Topology, node: NodeName, entry: Entry, found: list[Retired]) -> Finding:
    """Report a node's retired schemas of one move when prune may drop them; `due` is known."""
    due, now = entry.due, found[0].seen
    sizes = [one.size_bytes for one in found if one.size_bytes is not None]
    space = size(sum(sizes)) if sizes else "unknown size"
    age = (now - (entry.move.ended or entry.move.changed)).total_seconds()
    what = f"{len(found)} retired schema{'' if len(found) == 1 else 's'}, {space}, of a move"
    accept = " --accept-unconfirmed" if entry.state == "unconfirmed" else ""
    over = due is not None and due <= now
    return Finding(
        NAME,
        "retired_due" if over else "retired_kept",
        Severity.note,
        actual=f"{what} that ended {duration(max(age, 0))} ago"
        + ("" if over or due is None else f", kept until {_at(due)}"),
        expected="nothing after `shardctl prune`",
        hint=f"{'run' if over else 'then run'} `shardctl prune{accept}` to free the space",
        node=node,
        shards=retired.shards(topology, entry.move.id, found),
        object=entry.move.id,
    )


def _state(entry: Entry) -> str:
    """Describe the state of a move: its step, and what its journal has where the step does not."""
    step, state = entry.step, entry.move.state.value
    return f"state {state}" if step is None or state in step else f"step {step}, state {state}"


def _at(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _shards(entry: Entry) -> tuple[ShardId, ...]:
    return tuple(ShardId(shard) for shard in entry.move.shards)
