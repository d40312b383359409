"""Moves that are unfinished, ended badly or can be reversed, their streams, and what they leave."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC
from itertools import groupby
from typing import TYPE_CHECKING, Any

from shardctl.checks import status_look
from shardctl.checks.check import ERROR, NOTE, WARNING, Rule, Rules, Severity
from shardctl.meter import duration, size
from shardctl.postgres import queries
from shardctl.state import journal, leash
from shardctl.state.journal import MoveState
from shardctl.state.ledger import kept_reverses
from shardctl.topology import names
from shardctl.topology.model import NodeName, ShardId

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from datetime import datetime

    from shardctl.checks.check import Basics, Finding, View
    from shardctl.postgres.connection import Connection
    from shardctl.state.ledger import Entry
    from shardctl.state.move_objects import MoveObject, Stream
    from shardctl.topology.model import Topology


_RETIRED = "__retired_"


@dataclass(frozen=True, slots=True)
class Retired:
    """One retired schema, seen at a moment of its server's clock.

    `size_bytes` has indexes and TOAST in it; None where a lock forbade to measure.
    """

    schema: str
    size_bytes: int | None
    seen: datetime

    @property
    def move(self) -> str:
        """The move that retired it, by its name."""
        return self.schema[-8:]


def retired_schemas(basics: Basics, *, known: bool) -> list[str]:
    """Name the retired schemas that a move of the node's journal explains, or the rest.

    A move that was aborted has taken back what it had retired, so it explains none.
    """
    moves = {copy.move.id for copy in basics.journal if copy.move.state is not MoveState.aborted}
    found = (name for name in basics.schemas if _RETIRED in name)
    return sorted(name for name in found if (name[-8:] in moves) == known)


def measure_retired(connection: Connection, wanted: Sequence[str]) -> tuple[Retired, ...]:
    """Measure retired schemas; there are few, or none, and then nothing is asked."""
    if not wanted:
        return ()
    found = status_look.read_schemas(connection, list(wanted))
    (now,) = queries.one(connection, "SELECT clock_timestamp()")
    return tuple(Retired(name, found[name][0], now) for name in sorted(wanted) if name in found)


def retired_shards(topology: Topology, move: str, found: Sequence[Retired]) -> tuple[ShardId, ...]:
    """Give the shards whose retired copies of one move these are."""
    there = {one.schema for one in found}
    return tuple(
        shard
        for shard in sorted(topology.owners())
        if names.retired(topology.schema(shard), move) in there
    )


_KEPT = "nothing after `shardctl prune`"
_FINISH = "run `shardctl moves finish {object}` to drop what is left"
_KINDS = ("subscription", "publication", "triggers", "role")
"""Slots have findings of their own; rows about streams hold nothing up."""

RULES = Rules(
    "leftovers",
    {
        "move_running": Rule(
            NOTE,
            "{way}, {state}: {holder} is running it",
            "a move that ends",
            "run `shardctl moves show {object}` to see its phase",
        ),
        "move_unfinished": Rule(
            WARNING + ERROR,
            "unfinished, {state}: {way}, started by {who} on {started}{held}",
            "a running or finished move",
            "run `shardctl moves resume {object}` to continue it{abort}",
        ),
        "move_unconfirmed": Rule(
            WARNING,
            "unconfirmed: rows were not compared after the move {way}",
            "compared rows",
            "if you trust the target, run `shardctl prune --accept-unconfirmed` to drop the "
            "retired schemas",
        ),
        "copies_differ": Rule(
            ERROR,
            "{way}: the copies of {tables} differ",
            "equal copies on source and target",
            "compare the tables with the retired copies (`shardctl prune` keeps them); if the "
            "target is correct, drop the retired copies by hand",
        ),
        "retired_kept": Rule(
            NOTE,
            "{what}, kept until {due}",
            _KEPT,
            "then run `shardctl prune{accept}` to free the space",
        ),
        "retired_due": Rule(
            NOTE, "{what}", _KEPT, "run `shardctl prune{accept}` to free the space"
        ),
        "slot_unwatched": Rule(
            WARNING,
            "slot {whose} retains {held_bytes} of WAL, and its guard is not running (a server "
            "restart ends the guard)",
            "a guard that drops the slot before it fills the disk",
            "run {hint}",
        ),
        "slot_near_limit": Rule(
            WARNING,
            "slot {whose} retains {held_bytes} of WAL; at {limit_bytes} the server drops it, and "
            "the move {ends}",
            "less than half of the limit",
            "{hint}",
        ),
        "reverse_open": Rule(
            NOTE,
            "{way}: can be reversed until {until}{held}",
            "nothing is kept for a reverse, after `shardctl moves finish`",
            "run `shardctl moves finish {object}` when the move need not be reversed",
        ),
        "reverse_expired": Rule(
            NOTE + WARNING,
            "{way}: could be reversed until {until}{held}",
            "nothing is kept for a reverse",
            _FINISH,
        ),
        "reverse_lost": Rule(
            WARNING,
            "{way}: cannot be reversed, because slot {slot} was dropped (at its limit of WAL) or "
            "has lost its WAL",
            "a slot that keeps what a reverse needs, or nothing",
            _FINISH,
        ),
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
            yield _about(entry, "move_running", state=_state(entry), holder=entry.holder)
        elif entry.open:
            yield _unfinished(entry, held_bytes.get(entry.slot))
        elif entry.state == "unconfirmed" and entry.move.id in left:
            tables = ", ".join((entry.move.report or {}).get("differing", ())) or "some tables"
            differs = entry.move.proof == "differs"
            yield _about(entry, "copies_differ" if differs else "move_unconfirmed", tables=tables)
    moves = {entry.move.id: entry for entry in view.moves}
    for node, found in kept.items():
        ordered = sorted(found, key=lambda one: (one.move, one.schema))
        for move, group in groupby(ordered, key=lambda one: one.move):
            one = list(group)
            if (due := moves[move].due) is not None:
                shards = retired_shards(view.topology, move, one)
                yield _retired(node, moves[move], due, one, shards)


def _about(
    entry: Entry,
    code: str,
    severity: Severity | None = None,
    node: NodeName | None = None,
    **words: object,
) -> Finding:
    """Report something of a move and its shards."""
    move = entry.move
    return RULES.finding(
        code,
        severity,
        node=node,
        pooler=None,
        shards=[ShardId(shard) for shard in move.shards],
        object=move.id,
        way=f"from {move.source} to {move.target}",
        **words,
    )


def _unfinished(entry: Entry, held_bytes: int | None) -> Finding:
    """Report an interrupted move."""
    move = entry.move
    held = f"; its slot retains {size(held_bytes)} of WAL" if held_bytes else ""
    if limit := journal.wal_limit(move):
        held = (
            f"; its slot retained {size(limit['held_bytes'])} of WAL, more than the limit of "
            f"{size(limit['limit_bytes'])}, and was dropped"
        )
    abort = f", or `shardctl moves abort {move.id}` to abort it" if "abort" in entry.can() else ""
    return _about(
        entry,
        "move_unfinished",
        # Up to the fence the source serves its shards as ever, and behind the cutover the target.
        Severity.error if entry.changing_hands else Severity.warning,
        state=_state(entry),
        who=move.who,
        started=_at(move.started),
        held=held,
        abort=abort,
    )


def _retired(
    node: NodeName, entry: Entry, due: datetime, found: list[Retired], shards: Sequence[ShardId]
) -> Finding:
    """Report a node's retired schemas of one move, and when prune may drop them."""
    now = found[0].seen
    sizes = [one.size_bytes for one in found if one.size_bytes is not None]
    space = size(sum(sizes)) if sizes else "unknown size"
    age = (now - (entry.move.ended or entry.move.changed)).total_seconds()
    return RULES.finding(
        "retired_due" if due <= now else "retired_kept",
        node=node,
        shards=shards,
        object=entry.move.id,
        what=f"{len(found)} retired schema{'' if len(found) == 1 else 's'}, {space}, of a move "
        f"that ended {duration(max(age, 0))} ago",
        due=_at(due),
        accept=" --accept-unconfirmed" if entry.state == "unconfirmed" else "",
    )


def bounds(
    node: NodeName, entry: Entry, *, held_bytes: int | None, watched: bool
) -> Iterator[Finding]:
    """Find the slot of an open move whose guard is missing, or that comes near its limit."""
    drop = ", or `shardctl moves abort` to drop the slot" if "abort" in entry.can() else ""
    yield from _slot(
        {"node": node, "object": entry.slot, "whose": f"of move {entry.move.id}"},
        held_bytes,
        entry.move.plan.get("options", {}).get("max_wal_bytes"),
        watched=watched,
        again=f"`shardctl moves resume`: it starts the guard again and continues the move{drop}",
        ends="aborts",
        near=f"check the log and the disk of node {entry.move.target}; if the move has "
        "stopped, run `shardctl moves resume --max-wal SIZE` with a higher limit",
    )


def _slot(
    about: Mapping[str, Any],
    held_bytes: int | None,
    limit_bytes: int | None,
    *,
    watched: bool,
    again: str,
    ends: str,
    near: str,
) -> Iterator[Finding]:
    """Find a slot without a guard, or near its limit; `again` and `near` are the hints."""
    given = {**about, "held_bytes": held_bytes or 0}
    if not watched:
        yield RULES.finding("slot_unwatched", **given, hint=again)
    if leash.is_near(held_bytes, limit_bytes):
        yield RULES.finding(
            "slot_near_limit", **given, limit_bytes=limit_bytes, ends=ends, hint=near
        )


def reverses(moves: Sequence[Entry]) -> Iterator[Finding]:
    """Find moves that can be reversed, and leftovers of those that no longer can."""
    for entry in moves:
        reverse, move, node = entry.reverse, entry.move, NodeName(entry.move.target)
        if reverse is None or not reverse.can:
            continue
        held = reverse.held_bytes
        # A slot whose guard has ended still keeps WAL.
        grave = reverse.state == "expired" and held is not None
        yield _about(
            entry,
            f"reverse_{reverse.state}",
            Severity.warning if grave else None,
            node,
            until=_at(reverse.until),
            held="" if held is None else f"; slot {reverse.slot} retains {size(held)} of WAL",
            slot=reverse.slot,
        )
        if reverse.state != "open" or held is None:
            continue
        finish = f"`shardctl moves finish {move.id}`"
        yield from _slot(
            {"node": node, "object": reverse.slot, "whose": f"for the reverse of move {move.id}"},
            held,
            reverse.limit_bytes,
            watched=reverse.watched,
            again=f"`shardctl moves doctor`: it starts the guard again; or run {finish} to drop "
            "the slot",
            ends="cannot be reversed",
            near=f"run `shardctl moves reverse {move.id}` or {finish}",
        )


def _state(entry: Entry) -> str:
    """Describe the state of a move: its step, and what its journal has where the step does not."""
    step, state = entry.step, entry.move.state.value
    return f"state {state}" if step is None or state in step else f"step {step}, state {state}"


def _at(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def streams(
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
    for move, these in left.items():
        entry = entries.get(move)
        state = f"is {entry.move.state}" if entry else "no journal has"
        yield RULES.finding(
            "left_by_move", node=node, object=move, state=state, names=", ".join(these)
        )
