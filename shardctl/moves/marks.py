"""Marks of streamed moves in `shardctl.stream`.

A mark that the source gets arrives on the target behind all rows that were committed before it.
A mark that shardctl puts on the target says what a step has made there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from psycopg.types.json import Jsonb

from shardctl.moves import standbys
from shardctl.postgres import queries
from shardctl.state.journal import MoveState

if TYPE_CHECKING:
    from shardctl.postgres.connection import Connection

QUERIES = queries.load("shardctl.moves", "marks.sql")

PING, DECISION = "ping", "decision"
ARRIVED = "arrived"
"""The target's own mark, on its disk, that it has everything up to the fence's mark."""
COPIED = "copied"
"""The target's mark when it has the rows; its note has the timeline of the target's server."""
SUBSCRIBED = "subscribed"
"""The target's mark from the moment when its subscription follows; the note has the OID of that.

Only that subscription knows how far it has come: another one would apply changes again.
"""
_TIMELINE = "timeline"
REHEARSED = -1
"""The attempt of a mark that is never committed."""
STEPS = 0
"""The attempt of all marks that are not of a cutover."""


def put(
    session: Connection,
    move: str,
    what: str,
    *,
    attempt: int = STEPS,
    note: dict[str, Any] | None = None,
) -> None:
    """Put a mark; one that is there gets the time of now."""
    given = {"move": move, "attempt": attempt, "what": what}
    session.execute(QUERIES["put"], given | {"note": None if note is None else Jsonb(note)})


def last(session: Connection, move: str, what: str) -> dict[str, Any] | None:
    """Give the note of the last mark of a kind; None where there is none."""
    row = session.execute(QUERIES["last"], {"move": move, "what": what}).fetchone()
    return None if row is None else row[0]


def notes(session: Connection, move: str, what: str) -> dict[int, dict[str, Any]]:
    """Give the notes of all marks of a kind, by attempt."""
    return dict(session.execute(QUERIES["notes"], {"move": move, "what": what}).fetchall())


def seen(session: Connection, move: str, what: str, *, attempt: int = STEPS) -> bool:
    """Return whether a mark is there."""
    given = {"move": move, "attempt": attempt, "what": what}
    return session.execute(QUERIES["seen"], given).fetchone() == (True,)


def note_timeline(session: Connection, move: str, *, attempt: int = STEPS) -> None:
    """Put the mark by which a failover of the source is noticed: its timeline."""
    put(session, move, PING, attempt=attempt, note={_TIMELINE: standbys.timeline(session)})


def is_on_its_timeline(session: Connection, move: str) -> bool:
    """Return whether the source is the server that the last such mark was put on."""
    noted = last(session, move, PING)
    return noted is not None and noted.get(_TIMELINE) == standbys.timeline(session)


def revoke(session: Connection, move: str) -> None:
    """Remove the decision from a target that has not claimed, so that no later claim has it."""
    claimed = [state.value for state in MoveState if state.claimed_by_target]
    with session.transaction():
        given = {"move": move, "claimed": claimed}
        if session.execute(QUERIES["unclaimed"], given).fetchone() is not None:
            remove(session, move, DECISION)


def remove(session: Connection, move: str, what: str) -> None:
    """Remove all marks of a kind."""
    session.execute(QUERIES["remove"], {"move": move, "what": what})


def forget(session: Connection, move: str) -> None:
    """Remove all marks of a move."""
    session.execute(QUERIES["forget"], {"move": move})
