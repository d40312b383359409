"""The leash of a replication slot: a loop in its own server that bounds the WAL it holds back.

It runs in one session, outlives its client, and holds no snapshot for longer than one sleep.
The slot, physical or logical, its move and the limit are parameters.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from psycopg import sql

from shardctl.errors import Refused
from shardctl.postgres import queries
from shardctl.state.lock import who

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shardctl.postgres.connection import Connection

QUERIES = queries.load("shardctl.state", "leash.sql")

_FENCED, _WAITING = ["fenced", "drained", "promoting"], ["reserved", "undone"]
_ARMED_S = 10.0
_ARMED_POLL_S = 0.005


def arm(
    session: Connection,
    beside: Connection,
    node: str,
    *,
    move: str,
    slot: str,
    limit_bytes: int,
    keep_s: float | None = None,
) -> None:
    """Let a server drop `slot` as soon as it holds back more WAL than `limit_bytes`.

    With `keep_s` the slot is for the reverse of `move`, and the server drops it, too, so many
    seconds after the move has ended. The slot may be made afterwards, within a minute.
    `session` is the leash's own from now on, in autocommit; it may be closed at any time.
    `beside` is another session with the same database, in autocommit. A leash that was there
    before is replaced. Raises leash_not_armed and psycopg.Error.
    """
    end(beside, slot)
    statement = QUERIES["watch"].format(
        slot=sql.Literal(slot),
        move=sql.Literal(move),
        limit=sql.Literal(limit_bytes),
        # The move itself needs no slot that is for its reverse.
        fenced=sql.Literal([] if keep_s is not None else _FENCED),
        waiting=sql.Literal([] if keep_s is not None else _WAITING),
        keep=sql.Literal(None if keep_s is None else f"{keep_s} s"),
        who=sql.Literal(who()),
    )
    session.execute(QUERIES["settings"].format(slot=sql.Literal(slot)))
    session.pgconn.send_query(statement.as_string(session).encode())
    deadline = time.monotonic() + _ARMED_S
    while not is_armed(beside, slot):
        session.pgconn.consume_input()
        if not session.pgconn.is_busy():  # it has found the limit exceeded, and ended
            return
        if time.monotonic() > deadline:
            raise Refused(
                "leash_not_armed",
                f"node {node}: the guard of slot {slot} did not start within {_ARMED_S:g} s",
                hint="check the server's log and its load, then run `shardctl moves resume`",
            )
        time.sleep(_ARMED_POLL_S)


def is_armed(session: Connection, slot: str) -> bool:
    """Return whether the server watches the slot at this moment."""
    return slot in watched(session, [slot])


def watched(session: Connection, slots: Iterable[str]) -> frozenset[str]:
    """Give those of some slots that the session's server watches at this moment."""
    found = session.execute(QUERIES["watched"].format(of_slots=_of(slots)))
    return frozenset(slot for (slot,) in found)


def end(session: Connection, slot: str) -> None:
    """End what watches the slot, if anything does."""
    session.execute(QUERIES["end"].format(of_slots=_of([slot])))


def _of(slots: Iterable[str]) -> sql.Composed:
    return QUERIES["of_slots"].format(slots=sql.Literal(list(slots)))
