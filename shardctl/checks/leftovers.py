"""What moves, sessions and commands left behind on a node, and what it holds up."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC
from typing import TYPE_CHECKING

from shardctl.access import read_only
from shardctl.checks.check import ERROR, NOTE, WARNING, Check, Rule, Rules, Severity
from shardctl.meter import size
from shardctl.postgres import catalog
from shardctl.state import leash, move_objects
from shardctl.state.journal import MoveState
from shardctl.state.ledger import kept_reverses
from shardctl.topology import ranges
from shardctl.topology.model import NodeName, ShardId

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from shardctl.checks.check import Basics, Finding, Place, View
    from shardctl.state.ledger import Entry
    from shardctl.state.move_objects import MoveObject

_RETIRED = "__retired_"
_KINDS = ("slot", "subscription", "publication", "triggers", "role")
"""What blocks others, takes space or allows a login; records do not."""

RULES = Rules(
    "leftovers",
    {
        "move_unfinished": Rule(
            WARNING + ERROR,
            "unfinished at {state}: {way}, started by {who} on {started}",
            "a running or finished move",
            "run `shardctl moves resume {object}`, or `abort` where `moves show` names that",
        ),
        "move_unconfirmed": Rule(
            WARNING,
            "unconfirmed: rows were not compared after the move {way}",
            "compared rows",
            "if you trust the target, run `shardctl prune --accept-unconfirmed`",
        ),
        "copies_differ": Rule(
            ERROR,
            "{way}: the copies of {tables} differ",
            "equal copies on source and target",
            "compare the tables with the retired copies (`shardctl prune` keeps them); if the "
            "target is correct, drop the retired copies by hand",
        ),
        "reverse_over": Rule(
            NOTE + WARNING,
            "{way}: can no longer be reversed (until {until}); slot {slot} retains {held}",
            "nothing is kept for a reverse",
            "run `shardctl moves finish {object}` to drop what is left",
        ),
        "slot_unwatched": Rule(
            WARNING,
            "slot {object} retains {held}, and its guard is not running",
            "a guard that drops the slot before it fills the disk",
            "run `shardctl moves {again}`: it starts the guard again",
        ),
        "slot_near_limit": Rule(
            WARNING,
            "slot {object} retains {held}; at {limit} the server drops it",
            "less than half of the limit",
            "find out why it is not read faster; `shardctl moves resume --max-wal SIZE` gives a "
            "stopped move more, `shardctl moves finish` gives up what is kept for a reverse",
        ),
        "left_by_move": Rule(
            WARNING,
            "left by a move that {state}: {names}",
            "nothing: the move is not open",
            "run `shardctl moves doctor` to list and clear it",
        ),
        "slot_inactive": Rule(
            WARNING,
            "{kind} slot, inactive, retains {held}",
            "a replica that uses the slot, or no slot",
            "if no replica needs it, run `SELECT pg_drop_replication_slot('NAME')` on that node",
        ),
        "read_only_in_part": Rule(
            ERROR,
            "{refusing} of {tables} tables refuse writes, by {by}",
            "all tables of a shard refuse writes, or none",
            "run `shardctl read-only on {ranges}` to finish it, or `off` to undo it",
        ),
        "prepared_transaction": Rule(
            WARNING,
            "prepared for {age}",
            "no prepared transactions: they hold locks and block moves",
            "run `COMMIT PREPARED 'GID'` or `ROLLBACK PREPARED 'GID'` in that database",
        ),
        "repack_left": Rule(
            WARNING,
            "a killed pg_repack left {objects}",
            "nothing: the trigger that was left slows every write and fills a log table",
            "when no pg_repack runs: DROP EXTENSION pg_repack CASCADE; CREATE EXTENSION pg_repack",
        ),
    },
)


@dataclass(frozen=True, slots=True)
class Seen:
    """What moves have made on one node; it bounds what the slots in `watched` hold back."""

    watched: frozenset[str] = frozenset()
    of_moves: Sequence[MoveObject] = ()


def look(place: Place) -> Seen:
    """Ask for slots, prepared transactions, read-only shards, and what moves and repack left."""
    session = place.connection
    of_moves = move_objects.read(session).objects
    RULES.ask(place, "leftovers")
    marks = read_only.marks(session, list(place.shards))
    of_shards = {place.shards[schema]: mark for schema, mark in marks.items()}
    for mark, shards in read_only.alike(of_shards).items():
        if not mark.whole:
            words = {"refusing": mark.refusing, "tables": mark.tables, "by": mark.by}
            words["ranges"] = ranges.of(shards)
            RULES.found(place, "read_only_in_part", shards=shards, **words)
    for remains in catalog.repack_leftovers(session):
        shard = place.shards.get(remains.schema or "")
        RULES.found(
            place,
            "repack_left",
            shards=() if shard is None else (shard,),
            object=remains.name or f"table {remains.oid}, which no longer exists",
            objects=", ".join(remains.objects),
        )
    slots = [one.name for one in of_moves if one.kind == "slot"]
    return Seen(leash.watched(session, slots), of_moves)


def retired_schemas(basics: Basics, *, known: bool) -> list[str]:
    """Name the retired schemas that a move of the node's journal explains, or the rest.

    A move that was aborted has taken back what it had retired, so it explains none.
    """
    moves = {copy.move.id for copy in basics.journal if copy.move.state is not MoveState.aborted}
    found = (name for name in basics.schemas if _RETIRED in name)
    return sorted(name for name in found if (name[-8:] in moves) == known)


def judge(view: View[Seen]) -> Iterator[Finding]:
    """Find what is left: of moves, then node by node."""
    every = [retired_schemas(basics, known=True) for basics in view.basics.values()]
    left = {name[-8:] for found in every for name in found}
    for entry in view.moves:
        yield from _move(entry, left=entry.move.id in left)
    for node, seen in view.seen.items():
        yield from _of_moves(node, seen, view.moves)


def _move(entry: Entry, *, left: bool) -> Iterator[Finding]:
    """Find a move that is unfinished, ended badly, or is over and keeps what a reverse needed.

    `left` is whether retired schemas exist.
    """
    reverse, severity, node, code = entry.reverse, None, None, None
    if entry.state == "unfinished":
        code = "move_unfinished"
        # Up to the fence the source serves its shards as ever, and behind the cutover the target.
        severity = Severity.error if entry.changing_hands else Severity.warning
    elif entry.state == "unconfirmed" and left:
        code = "copies_differ" if entry.move.proof == "differs" else "move_unconfirmed"
    elif reverse is not None and reverse.can and reverse.state != "open":
        code, node = "reverse_over", NodeName(entry.move.target)
        # A slot whose guard has ended still keeps WAL.
        grave = reverse.state == "lost" or reverse.held_bytes is not None
        severity = Severity.warning if grave else Severity.note
    if code is not None:
        yield RULES.finding(
            code,
            severity,
            node=node,
            shards=[ShardId(shard) for shard in entry.move.shards],
            object=entry.move.id,
            way=f"from {entry.move.source} to {entry.move.target}",
            state=entry.step or entry.move.state.value,
            who=entry.move.who,
            started=_at(entry.move.started),
            slot=reverse.slot if reverse else "",
            held=_wal(reverse.held_bytes if reverse else None),
            tables=", ".join((entry.move.report or {}).get("differing", ())) or "some tables",
            until=_at(reverse.until) if reverse else "",
        )
    if reverse is not None and reverse.state == "open" and reverse.held_bytes is not None:
        held_there = (reverse.slot, reverse.held_bytes, reverse.limit_bytes)
        node = NodeName(entry.move.target)
        yield from _bounds(node, *held_there, again="" if reverse.watched else "doctor")


def _of_moves(node: NodeName, seen: Seen, moves: Sequence[Entry]) -> Iterator[Finding]:
    """Report once for each move that is over or unknown what a node still has of it.

    And the slots of open ones that nothing bounds, or that come near their limits.
    """
    entries, kept = {entry.move.id: entry for entry in moves}, kept_reverses(moves, over=True)
    left: dict[str, list[str]] = defaultdict(list)
    for one in seen.of_moves:
        entry = entries.get(one.move)
        if entry is not None and entry.open:
            if one.kind == "slot":
                limit = entry.move.plan.get("options", {}).get("max_wal_bytes")
                again = "" if one.name in seen.watched else f"resume {one.move}"
                yield from _bounds(node, one.name, one.held_bytes, limit, again=again)
        elif one.kind in _KINDS and one.move not in kept and (entry or one.kind != "role"):
            in_schema = "triggers in schema " if one.kind == "triggers" else f"{one.kind} "
            held = f" with {_wal(one.held_bytes)}" if one.kind == "slot" else ""
            left[one.move].append(f"{in_schema}{one.name}{held}")
    for move, these in left.items():
        state = f"is {entries[move].move.state}" if move in entries else "no journal has"
        yield RULES.finding(
            "left_by_move", node=node, object=move, state=state, names=", ".join(these)
        )


def _bounds(
    node: NodeName, slot: str, held_bytes: int | None, limit_bytes: int | None, *, again: str
) -> Iterator[Finding]:
    """Find a slot without a guard, which `again` starts, or near its limit."""
    held = _wal(held_bytes)
    if again:
        yield RULES.finding("slot_unwatched", node=node, object=slot, held=held, again=again)
    if held_bytes and limit_bytes and 2 * held_bytes > limit_bytes:
        limit = size(limit_bytes)
        yield RULES.finding("slot_near_limit", node=node, object=slot, held=held, limit=limit)


def _wal(held_bytes: int | None) -> str:
    return "no WAL" if held_bytes is None else f"{size(held_bytes)} of WAL"


def _at(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


CHECK = Check(
    RULES,
    "no unfinished moves, partly read-only shards, unused slots, prepared transactions, remains "
    "of moves and pg_repack",
    judge,
    look,
)
