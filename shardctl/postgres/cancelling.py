"""Statements that threads wait for, and that Ctrl-C cancels."""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psycopg

from shardctl.libpq import reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    Connection = psycopg.Connection[Any]

logger = logging.getLogger(__name__)

PATIENCE_S = 0.2
"""How long one request to cancel may take; a cancellation may come just too early, too."""


def cancel(session: Connection) -> None:
    """Ask a session's server to cancel what it runs; a server that is gone has ended it."""
    try:
        session.cancel_safe(timeout=PATIENCE_S)
    except psycopg.Error as error:
        logger.debug("could not cancel: %s", reason_of(error))


class Running:
    """Sessions of several threads, whose statements are cancelled together.

    `notice` shows the operator once that they are.
    """

    def __init__(self, notice: Callable[[str], None] = logger.info) -> None:
        self.notice = notice
        self._sessions: list[Connection] = []
        self._lock = threading.Lock()
        self.stopped = threading.Event()
        """Whether they were cancelled: no other statement should begin."""

    @contextmanager
    def statement(self, session: Connection) -> Iterator[None]:
        """Let what a session runs in this block be cancelled."""
        with self._lock:
            self._sessions.append(session)
        try:
            yield
        finally:
            with self._lock:
                self._sessions.remove(session)

    def cancel(self) -> None:
        """Cancel what runs now; to be called until nothing does."""
        if not self.stopped.is_set():
            self.stopped.set()
            self.notice("interrupted: cancelling the running statements")
        with self._lock:
            sessions = list(self._sessions)
        for session in sessions:
            cancel(session)
