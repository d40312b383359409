"""What sessions, moves and commands left behind on a node, and what it holds up."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC
from typing import TYPE_CHECKING

from shardctl.access import read_only
from shardctl.checks import leftovers_moves
from shardctl.checks.check import ERROR, NOTE, QUERIES, WARNING, Check, Rule, Rules
from shardctl.checks.status_look import QUERIES as STATUS
from shardctl.checks.status_look import Slot
from shardctl.meter import size
from shardctl.postgres import catalog
from shardctl.state import journal, leash, ledger, move_objects
from shardctl.topology import ranges

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from shardctl.access.read_only import Mark
    from shardctl.checks.check import Finding, Place, View
    from shardctl.checks.leftovers_moves import Retired
    from shardctl.postgres.catalog import Leftover
    from shardctl.state.ledger import Entry
    from shardctl.state.move_objects import MoveObject, Stream
    from shardctl.topology.model import NodeName, ShardId

_OF_MOVE = re.compile("shardctl_[0-9a-f]{8}")
_SLOT = "{kind} slot{whose}, {used}, retains {held}"

IDLE_S = 300
"""How long a session may be idle in a transaction."""

RULES = Rules(
    "leftovers",
    {
        **leftovers_moves.RULES.of,
        "read_only": Rule(
            NOTE,
            "writes are refused {since}by {by}",
            "read-only for as long as required",
            "run {off} to accept writes again",
        ),
        "read_only_in_part": Rule(
            ERROR,
            "{refusing} of {tables} tables refuse writes, {since}by {by}",
            "all tables of a shard refuse writes, or none",
            "run `shardctl read-only on {ranges}` to finish it, or {off} to undo it",
        ),
        "table_missing": Rule(
            ERROR,
            "the table is missing",
            "the table: without it shardctl cannot read or start moves",
            "restore it from a backup, or create it as another node has it "
            "(docs/operations/failures.md)",
        ),
        "slot_unknown": Rule(
            WARNING,
            _SLOT,
            "a journal entry for the move, or no slot",
            "stop the clone that streams from it, then run `SELECT "
            "pg_drop_replication_slot('{object}')` on that node",
        ),
        "slot_of_move": Rule(
            WARNING,
            _SLOT,
            "no slot: the move has ended",
            "run `shardctl moves doctor` to drop it",
        ),
        "slot_inactive": Rule(WARNING, _SLOT, "{expected}", "{hint}"),
        "prepared_transaction": Rule(
            WARNING,
            "prepared for {age_s}",
            "no prepared transactions: they hold locks and block moves",
            "run `COMMIT PREPARED 'GID'` or `ROLLBACK PREPARED 'GID'` in that database",
        ),
        "idle_in_transaction": Rule(
            WARNING,
            "pid {pid} idle in transaction for {longest_s}{more}",
            "less than {most_s}: such a session holds locks and blocks VACUUM and moves",
            "fix the application; to end a session: `SELECT pg_terminate_backend(PID)` on that "
            "node",
        ),
        "repack_left": Rule(
            WARNING,
            "a killed pg_repack left {objects}",
            "nothing: the trigger that was left slows every write and fills a log table",
            "when no pg_repack is running, run `DROP EXTENSION pg_repack CASCADE`, then `CREATE "
            "EXTENSION pg_repack`",
        ),
    },
)


@dataclass(frozen=True, slots=True)
class Seen:
    """What one node has; `found` are what sessions left, as code, object and words.

    `slots` are those without a client, and those of moves; the server bounds what `watched` ones
    hold back.
    `retired` are schemas that a move in the node's journal has retired; `read_only` are shards
    that are so, at least in part, and `shards` all by their schemas.
    """

    slots: tuple[Slot, ...]
    watched: frozenset[str]
    found: Sequence[tuple[str, str | None, Mapping[str, Any]]]
    retired: tuple[Retired, ...]
    read_only: Mapping[ShardId, Mark]
    repacked: tuple[Leftover, ...]
    shards: Mapping[str, ShardId]
    of_moves: tuple[MoveObject, ...] = ()
    streams: tuple[Stream, ...] = ()


def look(place: Place) -> Seen:
    """Ask for slots, prepared transactions, idle sessions, retired schemas, read-only shards."""
    ask = place.connection.execute
    marks = read_only.marks(place.connection, list(place.shards))
    every = [Slot(*row) for row in ask(STATUS["slots"])]
    slots = tuple(one for one in every if not one.active or _OF_MOVE.fullmatch(one.name))
    return Seen(
        slots=slots,
        watched=frozenset(leash.watched(place.connection, [slot.name for slot in slots])),
        found=ask(QUERIES["left_by_sessions"], {"seconds": IDLE_S}).fetchall(),
        retired=leftovers_moves.measure_retired(
            place.connection, leftovers_moves.retired_schemas(place.basics, known=True)
        ),
        read_only={place.shards[schema]: mark for schema, mark in marks.items()},
        repacked=catalog.repack_leftovers(place.connection),
        shards=place.shards,
        of_moves=tuple(move_objects.read(place.connection).objects),
        streams=move_objects.streams(place.connection),
    )


def judge(view: View[Seen]) -> Iterator[Finding]:
    """Find what is left: of moves, of read-only, then node by node."""
    kept = {node: seen.retired for node, seen in view.seen.items()}
    slots = {slot.name: slot.retained_bytes for seen in view.seen.values() for slot in seen.slots}
    yield from leftovers_moves.judge(view, kept, slots)
    yield from leftovers_moves.reverses(view.moves)
    for node, basics in view.basics.items():
        for table in basics.missing:
            yield RULES.finding("table_missing", node=node, object=table)
    of_streams = {node: (seen.of_moves, seen.streams) for node, seen in view.seen.items()}
    yield from leftovers_moves.streams(of_streams, view.moves)
    for node, seen in view.seen.items():
        for mark, shards in read_only.alike(seen.read_only).items():
            yield _read_only(node, mark, shards)
    moves = {entry.slot: entry for entry in view.moves}
    reversing = {journal.slot(reverse) for reverse in ledger.kept_reverses(view.moves, over=True)}
    for node, seen in view.seen.items():
        for slot in seen.slots:
            if slot.name not in reversing or slot.name in moves:
                yield from _slot(node, slot, moves.get(slot.name), watched=seen.watched)
        for code, name, words in seen.found:
            yield RULES.finding(code, node=node, object=name, **words)
        for one in seen.repacked:
            shard = seen.shards.get(one.schema or "")
            yield RULES.finding(
                "repack_left",
                node=node,
                shards=() if shard is None else (shard,),
                object=one.name or f"table {one.oid}, which no longer exists",
                objects=", ".join(one.objects),
            )


def _slot(
    node: NodeName, slot: Slot, move: Entry | None, *, watched: frozenset[str]
) -> Iterator[Finding]:
    """Find a slot without a client, or whose move is over; of an open move's, only its bounds."""
    if move is not None and move.open:
        is_watched, held = slot.name in watched, slot.retained_bytes
        yield from leftovers_moves.bounds(node, move, held_bytes=held, watched=is_watched)
        return
    of_move = bool(_OF_MOVE.fullmatch(slot.name))
    if not move and slot.active and not of_move:
        return
    code = "slot_of_move" if move else "slot_unknown" if slot.active else "slot_inactive"
    of_none = RULES.of["slot_unknown"]
    expected, hint = of_none.expected, of_none.hint.format(object=slot.name)
    if not of_move:
        expected = "a replica that uses the slot, or no slot"
        hint = "if no replica needs it, run `SELECT pg_drop_replication_slot('NAME')` on that node"
    whose = " of a move that no journal has" if of_move else ""
    yield RULES.finding(
        code,
        node=node,
        object=slot.name,
        kind=slot.type,
        whose=f" of a move in state {move.state}" if move else whose,
        used="active" if slot.active else "inactive",
        held="no WAL" if slot.retained_bytes is None else f"{size(slot.retained_bytes)} of WAL",
        expected=expected,
        hint=hint,
    )


def _read_only(node: NodeName, mark: Mark, shards: tuple[ShardId, ...]) -> Finding:
    return RULES.finding(
        "read_only" if mark.whole else "read_only_in_part",
        node=node,
        shards=shards,
        since=f"since {mark.since.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC, " if mark.since else "",
        by=mark.by,
        refusing=mark.refusing,
        tables=mark.tables,
        ranges=ranges.of(shards),
        off=f"`shardctl read-only off {ranges.of(shards)}`",
    )


CHECK = Check(
    RULES,
    "no unfinished moves, stuck streams, partly read-only shards, unused slots, prepared "
    "transactions, forgotten sessions, remains of pg_repack",
    judge,
    look,
)
