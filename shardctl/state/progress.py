"""The progress of a move's copy, in `shardctl.move_progress`: for people, from any terminal.

It is never written during a cutover, and never into `shardctl.move`: see `state.journal`.
"""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg

from shardctl.postgres.connection import NodeUnavailable
from shardctl.state.journal import QUERIES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
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


@contextmanager
def kept(
    shown: Progress,
    connect: Callable[[], Connection],
    move: str,
    look: Callable[[Progress, Connection], None] = lambda _shown, _session: None,
) -> Iterator[Progress]:
    """Record what `shown` has, the progress of one copy, once a second.

    It is written from a thread, over a session of its own with the source, which `connect` opens in
    autocommit, again where it is lost; `look` gets it each time. So the copy goes on where the
    source is lost, a lock is held, or this role cannot write there. In the end the row is removed
    and the session closed: nothing is written during a cutover. A server that does not answer is
    not waited for.
    """
    ended = threading.Event()
    for key in shown.at_work():  # of an earlier step, such as a comparison that left out tables
        shown.end(key)

    def keep() -> None:
        while not ended.is_set():
            try:
                with connect() as session:
                    session.execute(_LIMIT)
                    while not ended.wait(_EVERY_S):
                        look(shown, session)
                        for reading in shown.at_work().values():
                            write(session, move, reading)
                    session.execute(QUERIES["end_progress"], {"move": move})
            except (psycopg.Error, NodeUnavailable) as error:
                logger.info("move %s: cannot record its progress: %s", move, error)
                ended.wait(_AGAIN_S)

    thread = threading.Thread(target=keep, daemon=True)
    thread.start()
    try:
        yield shown
        for key, one in shown.at_work().items():
            shown.advance(key, one.total - one.done)  # the total is an estimate
    finally:
        for key in shown.at_work():
            shown.end(key)
        ended.set()
        thread.join(_END_S)
