"""Messages over libpq's own calls: sent and answered while this process looks after other things.

A process may have any number of files open: `select` could not wait for them.
"""

from __future__ import annotations

import selectors
import time
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.pq import ExecStatus, TransactionStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from psycopg import sql
    from psycopg.pq.abc import PGconn, PGresult


ANSWER_S = 60.0
"""How long an answer that is due may take: as long as the kernel waits for a peer."""

Rows = list[tuple[str | None, ...]]
"""The rows of a statement, each value as the server writes it."""


def ready(socket: int, seconds: float | None, *, write: bool = False) -> bool:
    """Wait until there is something to read, or, to `write`, room; return whether to read."""
    with selectors.PollSelector() as waiting:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if write else 0)
        waiting.register(socket, events)
        return any(found & selectors.EVENT_READ for _, found in waiting.select(seconds))


class Wire:
    """What goes over one session's socket; of no other use before the last result.

    `heed` is called before every wait, and at least every `every` seconds if that is a number:
    what it raises ends the message. Raises psycopg.OperationalError when the session is lost.
    """

    def __init__(
        self, pgconn: PGconn, heed: Callable[[], object] = lambda: None, every: float | None = None
    ) -> None:
        self.pgconn = pgconn
        self._heed = heed
        self._every = every

    def send(self, message: bytes) -> None:
        """Send a message of the simple protocol."""
        self.pgconn.send_query(message)
        self.flush()

    def flush(self) -> None:
        """Send what waits to be sent; the answer to it may have to be read for that."""
        while self.pgconn.flush():
            self.take(write=True)

    def take(self, *, write: bool = False) -> None:
        """Wait for a while, and take what has come."""
        self._heed()
        if ready(self.pgconn.socket, self._every, write=write):
            self.pgconn.consume_input()

    def answered(self, seconds: float) -> bool:
        """Wait for a result, but not longer; return whether there is one."""
        until = time.monotonic() + seconds
        while self.pgconn.is_busy():
            if not ready(self.pgconn.socket, max(0.0, until - time.monotonic())):
                return False
            self.pgconn.consume_input()
        return True

    def results(self, seconds: float | None = None) -> Iterator[PGresult]:
        """Give the results as they come; raises OperationalError where one takes too long."""
        while (result := self.result(seconds)) is not None:
            yield result

    def result(self, seconds: float | None = None) -> PGresult | None:
        """Wait for the next result, None at the end of the message; raises as `results`."""
        if seconds is None:
            while self.pgconn.is_busy():
                self.take()
        elif not self.answered(seconds):
            raise psycopg.OperationalError(f"no response within {seconds:g} s")
        return self.pgconn.get_result()


class Sent(Wire):
    """A message on its way; the session is of no other use before `rows`.

    `session` is in autocommit, and idle. Raises psycopg.OperationalError.
    """

    def __init__(self, session: psycopg.Connection[Any], message: sql.Composed | sql.SQL) -> None:
        super().__init__(session.pgconn)
        self._session = session
        self.send(message.as_bytes(session))

    def rows(self, seconds: float = ANSWER_S) -> list[Rows]:
        """Wait for the answer, and give the rows of every statement; raises psycopg.Error.

        A server that gives none within `seconds`, though it is due, has lost the session.
        """
        try:
            results = list(self.results(seconds))
        except psycopg.OperationalError:
            self._session.close()  # the answer may yet come, and would be taken for another's
            raise
        for result in results:
            if result.status == ExecStatus.FATAL_ERROR:
                if self._session.info.transaction_status is TransactionStatus.INERROR:
                    self._session.rollback()
                raise psycopg.errors.error_from_result(result)
        return [rows(result) for result in results]


def rows(result: PGresult) -> Rows:
    """Read the rows of one statement."""
    columns = range(result.nfields)
    read = ((result.get_value(row, c) for c in columns) for row in range(result.ntuples))
    return [tuple(None if v is None else v.decode(errors="replace") for v in row) for row in read]
