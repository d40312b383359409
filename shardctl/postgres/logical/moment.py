"""One moment of a stream, seen on both of its servers while clients write.

The source's tables are locked against writers while a mark is put into the stream, and a snapshot
is taken then. On the target, the worker that applies the stream waits at that mark for a table that
is locked, and a snapshot is taken then. So both snapshots see the same rows.

A locked table never waits for this process: what one server does under its locks is one message,
and the session that takes the snapshot is woken by that message, not from here. The two sessions
of a server wait for each other by advisory locks, called gates. Everybody who can log in may take
one of those, so their keys are random, and a session that lets another one pass is recognised
by its pid.
"""

from __future__ import annotations

import secrets
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus

from shardctl.libpq import Sent
from shardctl.postgres import queries

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from shardctl.postgres.connection import Connection

QUERIES = queries.load("shardctl.postgres.logical", "moment.sql")

IDLE_MS = 1_000
"""How much longer than the source's message the target's table stays locked, if this process
stops."""
SEE_MS = 5_000
"""How long the worker may need to the mark: what was committed before it is there already."""
_TABLE_MS = 0.1
_GATE_BITS = 62
_LOCKED = 4
"""The statement of the source's message that tells when the tables were locked."""
_TRANSIENT = (
    psycopg.errors.LockNotAvailable,
    psycopg.errors.QueryCanceled,
    psycopg.errors.DeadlockDetected,
)


class NotLocked(Exception):  # the caller tries again, or names who was in the way
    """Sessions that hold a table were not waited for any longer; nothing is locked.

    Writers waited for at most `held_ms`.
    """

    def __init__(self, reason: str, held_ms: float) -> None:
        super().__init__(reason)
        self.held_ms = held_ms


class NotSeen(Exception):  # the caller looks why
    """A worker that did not come to the mark in time; nothing is locked."""


@dataclass(frozen=True, slots=True)
class Moment:
    """The same moment on both servers.

    `source` and `target` are snapshots; each is valid while its `Side` is open. `at` is the
    source's clock. Writers waited for at most `held_ms`, of which transactions that were open
    before took `waited_ms`.
    """

    at: datetime
    source: str
    target: str
    held_ms: float
    waited_ms: float


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is locked and marked: `mark` is new, `before` the last one of `move`, and has arrived.

    A client that wants one of the `tables` of these schemas waits `lock_timeout_ms`, or a little
    longer where they are many.
    """

    stream: str
    move: str
    schemas: Sequence[str]
    tables: int
    mark: str
    before: str
    lock_timeout_ms: int


class Side:
    """Two sessions with one server: one locks tables, the other takes the snapshot and keeps it.

    Both are in autocommit, and of no other use.
    """

    def __init__(self, locking: Connection, keeping: Connection) -> None:
        self.locking, self.keeping = locking, keeping
        self.held: sql.Composable = sql.SQL("")
        """By what the first session waits for the second."""
        self._sent: Sent | None = None

    @property
    def lost(self) -> bool:
        """Whether its server has ended a session, as one that keeps a lock too long."""
        return bool(self.locking.closed or self.keeping.closed)

    def ready(self) -> None:
        """Let the second session wait for the first."""
        go, self.held = _closed(self.locking), _closed(self.keeping)
        self._sent = Sent(self.keeping, QUERIES["hold"].format(passed=go))

    def snapshot(self) -> str:
        """Give the snapshot, which is there when the first session's message has ended."""
        self.locking.execute(QUERIES["open"])
        if self._sent is None:  # pragma: no cover  # `ready` was called
            raise AssertionError
        sent, self._sent = self._sent, None
        return str(sent.rows()[2][0][0])

    def let_go(self) -> None:
        """End both transactions, with the snapshot and the locks; repeatable.

        Whatever fails on the way, both sessions open their gates: another attempt waits for them
        without a limit.
        """
        with suppress(psycopg.OperationalError):
            _end(self.locking)
            self.locking.execute(QUERIES["open"])
        if self._sent is not None:
            sent, self._sent = self._sent, None
            with suppress(psycopg.Error):  # a full disk has no room for a snapshot
                sent.rows()
        with suppress(psycopg.OperationalError):
            _end(self.keeping)
            self.keeping.execute(QUERIES["open"])


def take(source: Side, target: Side, wanted: Wanted) -> Moment:
    """See both servers of a stream at one moment.

    Raises NotLocked, NotSeen, psycopg.Error; then everything is as it was.
    """
    try:
        for one in (source, target):
            one.ready()
        return _take(source, target, wanted)
    except BaseException:
        for one in (source, target):
            one.let_go()
        raise


def _take(source: Side, target: Side, wanted: Wanted) -> Moment:
    all_ms = wanted.lock_timeout_ms + round(wanted.tables * _TABLE_MS)
    stop = QUERIES["stop_target"].format(
        lock_timeout=_ms(IDLE_MS), idle_timeout=_ms(2 * all_ms + IDLE_MS)
    )
    put = QUERIES["mark_source"].format(
        lock_timeout=_ms(wanted.lock_timeout_ms),
        statement_timeout=_ms(all_ms),
        schemas=sql.SQL(", ").join(map(sql.Literal, wanted.schemas)),
        move=sql.Literal(wanted.move),
        before=sql.Literal(wanted.before),
        mark=sql.Literal(wanted.mark),
        passed=source.held,
    )
    see = QUERIES["see_target"].format(
        statement_timeout=_ms(SEE_MS),
        subscription=sql.Literal(wanted.stream),
        passed=target.held,
    )
    began = time.monotonic()
    try:
        queries.rows_of_all(target.locking, stop)
        began = time.monotonic()
        waited_ms, at = queries.rows_of_all(source.locking, put)[_LOCKED][0]
    except _TRANSIENT as error:
        held_ms = (time.monotonic() - began) * 1000
        raise NotLocked(str(error).splitlines()[0], held_ms) from error
    marked = time.monotonic()
    try:
        queries.rows_of_all(target.locking, see)
    except psycopg.errors.QueryCanceled as error:
        raise NotSeen from error
    return Moment(
        at,
        source.snapshot(),
        target.snapshot(),
        held_ms=(marked - began) * 1000,
        waited_ms=waited_ms,
    )


def _closed(session: Connection) -> sql.Composed:
    """Close a gate of a session; give how another one waits for it."""
    gate = sql.Literal(secrets.randbits(_GATE_BITS))
    session.execute(QUERIES["gate"].format(gate=gate))
    return QUERIES["passed"].format(gate=gate, pid=sql.Literal(session.info.backend_pid))


def _ms(count: int) -> sql.Literal:
    return sql.Literal(f"{count}ms")


def _end(session: Connection) -> None:
    if session.info.transaction_status is not TransactionStatus.IDLE:
        session.rollback()
