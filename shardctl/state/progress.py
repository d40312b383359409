"""The progress of a move's copy, in `shardctl.move_progress`: for people, from any terminal.

It is never written during a cutover, and never into `shardctl.move`: see `state.journal`.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import psycopg

from shardctl.meter import Held, Meters
from shardctl.postgres.connection import NodeUnavailable
from shardctl.state.journal import QUERIES

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from shardctl.fanout import Progress
    from shardctl.meter import Reading
    from shardctl.postgres.connection import Connection

_EVERY_S = 1.0
_AGAIN_S = 5.0
_END_S = 2.0
_LIMIT = "SET statement_timeout = '1s'"
"""What is written is for people: no lock on this table may keep a session waiting."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MoveProgress:
    """The progress of a copy at a moment; None is what is not known (yet).

    `bytes_per_s` is over the last seconds; what the names of WAL say is as in `meter.Held`.
    """

    phase: str
    bytes: int
    total_bytes: int | None
    bytes_per_s: int | None
    eta_s: float | None
    lag_bytes: int | None
    wal_bytes: int | None
    wal_limit_bytes: int | None
    at: datetime

    @property
    def held(self) -> Held | None:
        """The WAL that the source holds back, if it is known."""
        if self.wal_bytes is None:
            return None
        return Held(self.wal_bytes, self.wal_limit_bytes, self.lag_bytes)


def read(session: Connection) -> dict[str, MoveProgress]:
    """Read the progress of the copies of all moves, by move."""
    rows = session.execute(QUERIES["read_progress"])
    return {move: MoveProgress(*row) for move, *row in rows}


def write(session: Connection, move: str, reading: Reading) -> None:
    """Write the progress of a move's copy."""
    held = reading.held
    given = {
        "phase": reading.phase,
        "bytes": reading.done,
        "total": reading.total or None,
        "rate": reading.rate,
        "eta_s": reading.eta_s,
        "lag": held and held.lag,
        "wal": held and held.bytes,
        "limit": held and held.limit,
    }
    session.execute(QUERIES["write_progress"], {"move": move, **given})


def remove(connect: Callable[[], Connection], move: str) -> None:
    """Remove what was written of a move; where that cannot be, the log says why."""
    try:
        with connect() as session:
            session.execute(_LIMIT)
            session.execute(QUERIES["end_progress"], {"move": move})
    except (psycopg.Error, NodeUnavailable) as error:
        logger.info("move %s: its progress was not removed: %s", move, error)


class Kept:
    """A `Progress` that also records the progress of its one copy once a second.

    It writes from a thread, over a session of its own with the source, which `connect` opens in
    autocommit. So the copy goes on where the source is lost, a lock is held, or this role cannot
    write there. When it is left, the row is removed and the session closed: nothing is written
    during a cutover.
    """

    def __init__(
        self,
        shown: Progress,
        connect: Callable[[], Connection],
        move: str,
        look: Callable[[Progress, Connection], None] = lambda _kept, _session: None,
    ) -> None:
        """Show it, too, by `shown`; `look` gets the session as often as it is written."""
        self._shown = shown
        self._connect = connect
        self._move = move
        self._look = look
        self._meters = Meters()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True)

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Show what is reported, and count it."""

        def report(*given: Any) -> None:
            for one in (self._shown, self._meters):
                getattr(one, name)(*given)

        return report

    def __enter__(self) -> Progress:
        """Begin to write."""
        self._thread.start()
        return cast("Progress", self)

    def __exit__(self, kind: object, *_: object) -> None:
        """End that and every phase; a server that does not answer is not waited for."""
        for key, one in self._meters.read().items():
            if kind is None:  # the total is an estimate
                self._shown.advance(key, one.total - one.done)
            self._shown.end(key)
        self._ended.set()
        self._thread.join(_END_S)

    def _keep(self) -> None:
        """Write until the copy has ended; connect again where the session is lost."""
        while not self._ended.is_set():
            try:
                with self._connect() as session:
                    session.execute(_LIMIT)
                    while not self._ended.wait(_EVERY_S):
                        self._look(cast("Progress", self), session)
                        for reading in self._meters.read().values():
                            write(session, self._move, reading)
                    session.execute(QUERIES["end_progress"], {"move": self._move})
            except (psycopg.Error, NodeUnavailable) as error:
                logger.info("move %s: cannot record its progress: %s", self._move, error)
                self._ended.wait(_AGAIN_S)
