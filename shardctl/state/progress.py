"""How far the copy of a move is, in `shardctl.move_progress`: for people, from any terminal.

It is never written during a cutover, and never into `shardctl.move`: see `state.states`.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from datetime import datetime  # noqa: TC003  # a field type that class_row's readers resolve
from typing import TYPE_CHECKING

import psycopg
from psycopg.rows import class_row

from shardctl.postgres import queries
from shardctl.postgres.connection import is_lost

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardctl.fanout import Progress
    from shardctl.postgres.connection import Connection

QUERIES = queries.load("shardctl.state", "progress.sql")

_EVERY_S = 1.0
_WRITING = ("SELECT", "INSERT", "UPDATE", "DELETE")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MoveProgress:
    """How far a copy was at a moment; `total`, `rate` and `eta_s` are None until they are known.

    Bytes, bytes a second, and seconds.
    """

    move: str
    phase: str
    bytes: int
    total: int | None
    rate: float | None
    eta_s: float | None
    at: datetime


def _may(session: Connection, *rights: str) -> bool:
    """Tell whether the role has these rights to the table; a node of format 2 has none."""
    return session.execute(QUERIES["may"], {"rights": list(rights)}).fetchone() == (True,)


def read(session: Connection) -> dict[str, MoveProgress]:
    """Read how far the copies of all moves are, by move; empty where it cannot be read."""
    if not _may(session, "SELECT"):
        return {}
    with session.cursor(row_factory=class_row(MoveProgress)) as cursor:
        return {one.move: one for one in cursor.execute(QUERIES["read"])}


def write(
    session: Connection, move: str, phase: str, *, done: int, total: int | None, seconds: float
) -> None:
    """Write how far a move's copy is, `seconds` after its phase began."""
    rate = done / seconds if done and seconds > 0 else None
    # The source's estimate of the total may be too low.
    eta_s = max(total - done, 0) / rate if total and rate else None
    given = {"phase": phase, "bytes": done, "total": total, "rate": rate, "eta_s": eta_s}
    session.execute(QUERIES["write"], {"move": move, **given})


def end(session: Connection, move: str) -> None:
    """Remove what was written of a move: its copy is made."""
    if _may(session, *_WRITING):
        session.execute(QUERIES["end"], {"move": move})


class Kept:
    """A `Progress` that also writes once a second how far the one copy is that it hears of.

    `session` is with the source, in autocommit, and of the thread that reports. The copy goes on
    without progress where the source is lost or this role cannot write there.
    """

    def __init__(
        self,
        shown: Progress,
        session: Connection,
        move: str,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Show it, too, by `shown`."""
        self._shown = shown
        self._session = session
        self._move = move
        self._clock = clock
        self._kept = _may(session, *_WRITING)
        self._phase, self._total, self._done = "", 0, 0
        self._began = self._written = clock()

    def expect(self, key: str, phase: str, total: int) -> None:
        """Begin a phase with `total` bytes to come, 0 where that is not known."""
        self._shown.expect(key, phase, total)
        self._phase, self._total, self._done = phase, total, 0
        self._began = self._clock()
        self._write()

    def advance(self, key: str, done: int = 1) -> None:
        """Count `done` more bytes."""
        self._shown.advance(key, done)
        self._done += done
        if self._clock() - self._written >= _EVERY_S:
            self._write()

    def _write(self) -> None:
        self._written = self._clock()
        if not self._kept or self._session.closed:
            return
        seconds = self._written - self._began
        try:
            write(
                self._session,
                self._move,
                self._phase,
                done=self._done,
                total=self._total or None,
                seconds=seconds,
            )
        except psycopg.Error as error:
            if not is_lost(error):
                raise
            logger.info("move %s: its progress was not written: %s", self._move, error)
