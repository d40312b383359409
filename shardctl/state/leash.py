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

UNMADE_S = 60
"""How long a leash waits for a slot that is still missing."""

_FENCED, _WAITING = ["fenced", "drained", "promoting"], ["reserved", "undone"]
_CLAIMING_S = 60
"""How long behind the decision a slot is kept beyond its limit, so that the target can claim."""
_POLL_S = 0.5
_LOCK_TIMEOUT = "1s"
_ARMED_S = 10.0
_ARMED_POLL_S = 0.005
_PATIENCE_MS = 5000


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
    seconds after the move has ended. The slot may be made afterwards, within `UNMADE_S`.
    `session` is the leash's own from now on, in autocommit; it may be closed at any time.
    `beside` is another session with the same database, in autocommit. A leash that was there
    before is replaced. Raises leash_not_armed and psycopg.Error.
    """
    end(beside, slot)
    # To a client that is gone nothing may be sent: the second message would end the session.
    session.execute("SET client_min_messages TO error")
    session.execute("SET client_connection_check_interval TO 0")
    session.execute(sql.SQL("SET lock_timeout TO {}").format(sql.Literal(_LOCK_TIMEOUT)))
    statement = QUERIES["watch"].format(
        slot=sql.Literal(slot),
        move=sql.Literal(move),
        limit=sql.Literal(limit_bytes),
        # The move itself needs no slot that is for its reverse.
        fenced=sql.Literal([] if keep_s is not None else _FENCED),
        claiming=sql.SQL("interval {}").format(sql.Literal(f"{_CLAIMING_S} s")),
        waiting=sql.Literal([] if keep_s is not None else _WAITING),
        keep=sql.Literal(None if keep_s is None else f"{keep_s} s"),
        who=sql.Literal(who()),
        poll=sql.Literal(_POLL_S),
        patience=sql.SQL("interval {}").format(sql.Literal(f"{UNMADE_S} s")),
    )
    session.execute(QUERIES["name"].format(slot=sql.Literal(slot)))
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
    patience = sql.Literal(_PATIENCE_MS)
    session.execute(QUERIES["end"].format(of_slots=_of([slot]), patience_ms=patience))


def is_near(held_bytes: int | None, limit_bytes: int | None) -> bool:
    """Return whether a slot holds back more than half of its limit; not without either.

    >>> is_near(51, 100), is_near(50, 100), is_near(51, None), is_near(None, 100)
    (True, False, False, False)
    """
    return bool(held_bytes and limit_bytes and 2 * held_bytes > limit_bytes)


def _of(slots: Iterable[str]) -> sql.Composed:
    return QUERIES["of_slots"].format(slots=sql.Literal(list(slots)))
