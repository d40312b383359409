"""A message that a server carries out while this process waits for something else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
from psycopg.pq import ExecStatus, TransactionStatus

from shardctl.wire import ANSWER_S, Wire

if TYPE_CHECKING:
    from psycopg import sql
    from psycopg.pq.abc import PGresult

    from shardctl.postgres.connection import Connection

Rows = list[tuple[str | None, ...]]
"""The rows of a statement, each value as the server writes it."""


class Sent:
    """A message on its way; the session is of no other use before `rows`.

    `session` is in autocommit, and idle. Raises psycopg.OperationalError.
    """

    def __init__(self, session: Connection, message: sql.Composed | sql.SQL) -> None:
        self._session = session
        self._wire = Wire(session.pgconn)
        self._wire.send(message.as_bytes(session))

    def answered(self, seconds: float) -> bool:
        """Wait for an answer, but not longer; return whether there is one."""
        return self._wire.answered(seconds)

    def rows(self, seconds: float = ANSWER_S) -> list[Rows]:
        """Wait for the answer, and give the rows of every statement; raises psycopg.Error.

        A server that gives none within `seconds`, though it is due, has lost the session.
        """
        try:
            results = list(self._wire.results(seconds))
        except psycopg.OperationalError:
            self._session.close()  # the answer may yet come, and would be taken for another's
            raise
        for result in results:
            if result.status == ExecStatus.FATAL_ERROR:
                if self._session.info.transaction_status is TransactionStatus.INERROR:
                    self._session.rollback()
                raise psycopg.errors.error_from_result(result)
        return [_rows(result) for result in results]


def _rows(result: PGresult) -> Rows:
    """Read the rows of one statement."""
    columns = range(result.nfields)
    return [
        tuple(
            None if (value := result.get_value(row, column)) is None else value.decode()
            for column in columns
        )
        for row in range(result.ntuples)
    ]
