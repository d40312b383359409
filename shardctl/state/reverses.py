"""The possibility to reverse a streamed move: how long it lasts, and what became of it.

The reverse is a move of its own. Its id is in the plan of the move that it would reverse, and what
is kept for it has that id in its name.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal

from psycopg.types.json import Jsonb

from shardctl.ids import times
from shardctl.state import journal, leash
from shardctl.state.journal import QUERIES, MoveState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shardctl.postgres.connection import Connection
    from shardctl.state.journal import Move

ENDED = "reverse_ended"
"""The key of a move's report that says that nothing is kept for its reverse any more."""
LIMIT = "reverse_wal_limit"
"""The key for the most WAL that its target keeps for the reverse."""

State = Literal["open", "begun", "reversed", "expired", "lost", "finished"]

_CLOSED = (MoveState.done, MoveState.unconfirmed)


@dataclass(frozen=True, slots=True)
class Kept:
    """What a target keeps for a reverse at a moment of its clock; `held_bytes` None for no slot."""

    at: datetime
    held_bytes: int | None = None
    watched: bool = True
    """Whether the server bounds what the slot holds back."""


@dataclass(frozen=True, slots=True)
class Reverse:
    """Whether a move that is over can be reversed; `move` is the id of the reverse."""

    move: str
    state: State
    until: datetime
    held_bytes: int | None = None
    """WAL that the target holds back for it."""
    limit_bytes: int | None = None
    watched: bool = True

    @property
    def slot(self) -> str:
        """The slot and the publication on the target."""
        return journal.slot(self.move)

    @property
    def holds(self) -> bool:
        """Whether what it needs must stay as it is."""
        return self.state in ("open", "begun")

    @property
    def can(self) -> tuple[str, ...]:
        """The commands by which an operator uses it, or gives it up."""
        if self.state == "open":
            return ("reverse", "finish")
        return ("finish",) if self.state in ("expired", "lost") else ()

    def as_json(self) -> dict[str, object]:
        """Give the shape of docs/reference/json.md."""
        return {
            "state": self.state,
            "until": times.render(int(self.until.timestamp() * 1000)),
            "wal_bytes": self.held_bytes,
            "move": self.move,
        }


def id_of(move: Move) -> str | None:
    """Give the id of the move that can reverse one; None where none was to be kept."""
    found: str | None = move.plan.get("reverse")
    return found


def read(session: Connection, moves: Iterable[Move]) -> Mapping[str, Kept]:
    """Read what the target of some moves keeps for their reverses, by these moves' ids."""
    wanted = {journal.slot(reverse): one.id for one in moves if (reverse := _due(one))}
    if not wanted:
        return {}
    watched = leash.watched(session, wanted)
    rows = session.execute(QUERIES["slots_kept"], {"slots": list(wanted)})
    return {wanted[slot]: Kept(now, held, watched=slot in watched) for slot, now, held in rows}


def of(move: Move, begun: Move | None, kept: Kept | None, now: datetime) -> Reverse | None:
    """Judge whether a move can be reversed; pure.

    `begun` is the reverse, where a journal has it. `kept` is None where the target was not asked:
    it may well have what it takes. Then `now` decides.
    """
    reverse = id_of(move)
    if reverse is None or move.state not in _CLOSED:
        return None
    report, found = move.report or {}, kept or Kept(now)
    until = (move.ended or move.changed) + timedelta(
        seconds=move.plan["options"].get("keep_reverse_s", 0.0)
    )
    state: State = "open"
    if begun is not None and begun.state is not MoveState.aborted:
        state = "reversed" if begun.state.closed else "begun"
    elif begun is not None or ENDED in report:
        state = "finished"
    elif found.at > until:
        state = "expired"
    elif kept is not None and kept.held_bytes is None:
        state = "lost"
    return Reverse(
        reverse, state, until, found.held_bytes, report.get(LIMIT), watched=found.watched
    )


def note(session: Connection, move: str, key: str, value: object) -> None:
    """Write something of its reverse into the report of a move that is at its end or behind it."""
    given = {"move": move, "report": Jsonb({key: value})}
    session.execute(QUERIES["note_reverse"], given)


def _due(move: Move) -> str | None:
    """Give the id of the reverse, where its slot may still be there."""
    over = move.state in _CLOSED and ENDED not in (move.report or {})
    return id_of(move) if over else None
