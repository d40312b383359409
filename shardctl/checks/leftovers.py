"""What sessions, moves and commands left behind on a node, and what it holds up."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

from shardctl.access import read_only
from shardctl.checks import (
    leftovers_moves,
    leftovers_read_only,
    leftovers_repack,
    leftovers_reverses,
    leftovers_streams,
    retired,
)
from shardctl.checks.check import Check
from shardctl.checks.findings import Finding, Severity
from shardctl.meter import duration, size
from shardctl.postgres import queries, repack_left
from shardctl.state import journal, leash, ledger, move_objects

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from shardctl.access.read_only import Mark
    from shardctl.checks.check import Place, View
    from shardctl.checks.retired import Retired
    from shardctl.postgres.repack_left import Leftover
    from shardctl.state.ledger import Entry
    from shardctl.state.move_objects import MoveObject, Stream
    from shardctl.topology.model import NodeName, ShardId

NAME = "leftovers"
QUERIES = queries.load("shardctl.checks", "leftovers.sql")

_OF_MOVE = re.compile("shardctl_[0-9a-f]{8}")

IDLE_S = 300
"""How long a session may be idle in a transaction."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot without a client, or of a move; None where no WAL was ever retained for it."""

    name: str
    kind: str
    active: bool
    held_bytes: int | None
    watched: bool = True
    """Whether the server bounds what it holds back; only those of moves are looked at."""


@dataclass(frozen=True, slots=True)
class Session:
    """A session that is idle in a transaction."""

    pid: int
    application: str
    idle_s: int


@dataclass(frozen=True, slots=True)
class Seen:
    """What one node has; `prepared` are ages in seconds by global identifier.

    `retired` are schemas that a move in the node's journal has retired; `read_only` are shards
    that are so, at least in part, and `shards` all by their schemas.
    """

    slots: tuple[Slot, ...]
    prepared: Mapping[str, int]
    sessions: tuple[Session, ...]
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
    found = [Slot(*row) for row in ask(QUERIES["slots"])]
    watched = leash.watched(place.connection, [slot.name for slot in found])
    return Seen(
        slots=tuple(replace(slot, watched=slot.name in watched) for slot in found),
        prepared=dict(ask(QUERIES["prepared"]).fetchall()),
        sessions=tuple(Session(*row) for row in ask(QUERIES["idle"], {"seconds": IDLE_S})),
        retired=retired.measure(place.connection, retired.schemas(place.basics, known=True)),
        read_only={place.shards[schema]: mark for schema, mark in marks.items()},
        repacked=repack_left.read(place.connection),
        shards=place.shards,
        of_moves=tuple(move_objects.read(place.connection).objects),
        streams=move_objects.streams(place.connection),
    )


def judge(view: View[Seen]) -> Iterator[Finding]:
    """Find what is left: of moves, of read-only, then node by node."""
    kept = {node: seen.retired for node, seen in view.seen.items()}
    slots = {slot.name: slot.held_bytes for seen in view.seen.values() for slot in seen.slots}
    yield from leftovers_moves.judge(view, kept, slots)
    yield from _unwatched(view)
    yield from _near_limit(view)
    yield from leftovers_reverses.judge(NAME, view.moves)
    yield from _missing(view)
    yield from leftovers_streams.judge(
        NAME,
        {node: (seen.of_moves, seen.streams) for node, seen in view.seen.items()},
        view.moves,
    )
    marks = {node: seen.read_only for node, seen in view.seen.items()}
    yield from leftovers_read_only.judge(NAME, marks)
    moves = {entry.slot: entry for entry in view.moves}
    reversing = {journal.slot(reverse) for reverse in ledger.kept_reverses(view.moves, over=True)}
    for node, seen in view.seen.items():
        for slot in seen.slots:
            if slot.name not in reversing or slot.name in moves:
                yield from _slot(node, slot, moves.get(slot.name))
        for gid, age_s in seen.prepared.items():
            yield Finding(
                NAME,
                "prepared_transaction",
                Severity.warning,
                actual=f"prepared for {duration(age_s)}",
                expected="no prepared transactions: they hold locks and block moves",
                hint="run `COMMIT PREPARED 'GID'` or `ROLLBACK PREPARED 'GID'` in that database",
                node=node,
                object=gid,
            )
        yield from _idle(node, seen.sessions)
        yield from leftovers_repack.judge(NAME, node, seen.repacked, seen.shards)


def _missing(view: View[Seen]) -> Iterator[Finding]:
    """Find tables of schema shardctl that were dropped."""
    for node, basics in view.basics.items():
        for table in basics.missing:
            yield Finding(
                NAME,
                "table_missing",
                Severity.error,
                actual="the table is missing",
                expected="the table: without it shardctl cannot read or start moves",
                hint="run `shardctl init` to create it again, empty; if a move was running, "
                "restore the table's rows from a backup",
                node=node,
                object=table,
            )


def _unwatched(view: View[Seen]) -> Iterator[Finding]:
    """Find slots of open moves whose guard is missing: a restart of the server ends it."""
    moves = {entry.slot: entry for entry in view.moves if entry.open}
    for node, seen in view.seen.items():
        for slot in seen.slots:
            entry = moves.get(slot.name)
            if entry is None or slot.watched:
                continue
            yield Finding(
                NAME,
                "slot_unwatched",
                Severity.warning,
                actual=f"slot of move {entry.move.id} retains {size(slot.held_bytes or 0)} of "
                "WAL, and its guard is not running (a server restart ends the guard)",
                expected="a guard that drops the slot before it fills the disk",
                hint=(
                    "run `shardctl moves resume`: it starts the guard again and continues the move"
                )
                + (
                    ", or `shardctl moves abort` to drop the slot" if "abort" in entry.can() else ""
                ),
                node=node,
                object=slot.name,
            )


def _near_limit(view: View[Seen]) -> Iterator[Finding]:
    """Find slots of open moves that hold back more than half of what their limit allows."""
    moves = {entry.slot: entry for entry in view.moves if entry.open}
    for node, seen in view.seen.items():
        for slot in seen.slots:
            entry = moves.get(slot.name)
            limit = entry.move.plan.get("options", {}).get("max_wal_bytes") if entry else None
            if entry is None or not leash.is_near(slot.held_bytes, limit):
                continue
            yield Finding(
                NAME,
                "slot_near_limit",
                Severity.warning,
                actual=f"slot of move {entry.move.id} retains {size(slot.held_bytes)} of WAL; at "
                f"{size(limit)} the server drops it, and the move aborts",
                expected="a target that keeps up with its source",
                hint=f"check the log and the disk of node {entry.move.target}; if the move has "
                "stopped, run `shardctl moves resume --max-wal SIZE` with a higher limit",
                node=node,
                object=slot.name,
            )


def _slot(node: NodeName, slot: Slot, move: Entry | None) -> Iterator[Finding]:
    """Find a slot without a client, or whose move is over; an open move's is reported with it."""
    if move.open if move else slot.active and not _OF_MOVE.fullmatch(slot.name):
        return
    held = "no WAL" if slot.held_bytes is None else f"{size(slot.held_bytes)} of WAL"
    used = "active" if slot.active else "inactive"
    whose, expected = "", "a replica that uses the slot, or no slot"
    hint = "if no replica needs it, run `SELECT pg_drop_replication_slot('NAME')` on that node"
    if move:
        whose = f" of a move in state {move.state}"
        expected = "no slot: the move has ended"
        hint = "run `shardctl moves doctor` to drop it"
    elif _OF_MOVE.fullmatch(slot.name):
        whose = " of a move that no journal has"
        expected = "a journal entry for the move, or no slot"
        hint = (
            "stop the clone that streams from it, then run `SELECT "
            f"pg_drop_replication_slot('{slot.name}')` on that node"
        )
    yield Finding(
        NAME,
        "slot_of_move" if move else "slot_unknown" if slot.active else "slot_inactive",
        Severity.warning,
        actual=f"{slot.kind} slot{whose}, {used}, retains {held}",
        expected=expected,
        hint=hint,
        node=node,
        object=slot.name,
    )


def _idle(node: NodeName, sessions: Iterable[Session]) -> Iterator[Finding]:
    ordered = sorted(sessions, key=lambda session: (session.application, -session.idle_s))
    for application, group in groupby(ordered, key=lambda session: session.application):
        longest, *others = group
        more = f", and {len(others)} more for less time" if others else ""
        yield Finding(
            NAME,
            "idle_in_transaction",
            Severity.warning,
            actual=f"pid {longest.pid} idle in transaction for {duration(longest.idle_s)}{more}",
            expected=f"less than {duration(IDLE_S)}: such a session holds locks and blocks VACUUM "
            "and moves",
            hint="fix the application; to end a session: `SELECT pg_terminate_backend(PID)` "
            "on that node",
            node=node,
            object=application or None,
        )


CHECK = Check(
    NAME,
    "no unfinished moves, stuck streams, partly read-only shards, unused slots, prepared "
    "transactions, forgotten sessions, remains of pg_repack",
    judge,
    look,
)
