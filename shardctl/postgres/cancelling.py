"""Statements that Ctrl-C cancels: those that threads wait for, and those of sessions that only ask.

A lock holds a question up for seconds, and so does a server that hangs. It may take long: one that
is not answered after a second is looked at from a second session. Where that one gets no answer
either, the server hangs, and is as good as away.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import waiting

from shardctl import fanout
from shardctl.libpq import reason_of
from shardctl.postgres import blocking

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    Connection = psycopg.Connection[Any]

logger = logging.getLogger(__name__)

PATIENCE_S = 0.2
"""How long one request to cancel may take; a cancellation may come just too early, too."""

LOCK_TIMEOUT = "3s"
_LOOK_AFTER_S = 1.0
_POLL_S = 0.1


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


class AnswersNothing(psycopg.OperationalError):
    """A server that accepted the connection and then stopped responding."""


class Cancelled(psycopg.OperationalError):
    """A question that was cancelled because Ctrl-C was pressed."""


class Observing(psycopg.Connection[Any]):
    """A session whose questions end by Ctrl-C, and where the server hangs.

    `beside` opens a second session with the same server; it has none itself, and waits for
    `answer_s` at most. A question that ends by `lock_timeout` names who holds the lock.
    """

    beside: Callable[[], psycopg.Connection[Any]] | None = None
    answer_s: float = 10.0
    _holder: str | None = None

    def wait(self, gen: Any, interval: float = _POLL_S, timeout: float | None = None) -> Any:
        """Consume a generator of psycopg's, as its own method does; raises AnswersNothing, too."""
        self._holder = None
        more = {} if timeout is None else {"timeout": timeout}
        try:
            return waiting.wait(self._watched(gen), self.pgconn.socket, interval=interval, **more)
        except psycopg.errors.LockNotAvailable as error:
            if self._holder is None:
                raise
            raise psycopg.errors.LockNotAvailable(
                f"{self._holder} holds a lock that this query waits for"
            ) from error
        except (AnswersNothing, Cancelled, KeyboardInterrupt):
            # psycopg's own way would wait for the server, which may hang.
            cancel(self)
            self.close()
            raise

    def _watched(self, gen: Any) -> Generator[Any, Any, Any]:
        """Hand on what a generator waits for, and look from time to time why it waits."""
        began = time.monotonic()
        next_s = self.answer_s if self.beside is None else _LOOK_AFTER_S
        try:
            state = next(gen)
            while True:
                ready = yield state
                if not ready:
                    if fanout.interrupted():
                        raise Cancelled("cancelled")
                    if time.monotonic() - began >= next_s:
                        self._look()
                        next_s *= 2
                state = gen.send(ready)
        except StopIteration as end:
            return end.value

    def _look(self) -> None:
        """See that the server answers another session, and who blocks this one."""
        silent = AnswersNothing(
            "the server accepted the connection and then stopped responding for "
            f"{self.answer_s:g} s"
        )
        if self.beside is None:
            raise silent
        try:
            with self.beside() as other:
                found = blocking.holders(other, [self.info.backend_pid])
        except (AnswersNothing, psycopg.errors.ConnectionTimeout) as error:
            raise silent from error
        except psycopg.Error as error:  # such as no room for one more session
            logger.info("cannot find out which session blocks the query: %s", reason_of(error))
        else:
            self._holder = str(found[0][1]) if found else None
