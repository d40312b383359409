"""A message that a server carries out while this process waits for something else."""

from __future__ import annotations

import select
from typing import TYPE_CHECKING

import psycopg
from psycopg.pq import ExecStatus, TransactionStatus

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
        session.pgconn.send_query(message.as_bytes(session))
        self._flush()

    def answered(self, seconds: float) -> bool:
        """Wait for an answer, but not longer; return whether there is one."""
        pgconn = self._session.pgconn
        while pgconn.is_busy():
            if not select.select([pgconn.socket], [], [], seconds)[0]:
                return False
            pgconn.consume_input()
        return True

    def discard(self) -> None:
        """Wait for the answer, and pass over it and its errors."""
        while self._result() is not None:
            pass

    def rows(self) -> list[Rows]:
        """Wait for the answer, and give the rows of every statement; raises psycopg.Error."""
        results = []
        while (result := self._result()) is not None:
            results.append(result)
        for result in results:
            if result.status == ExecStatus.FATAL_ERROR:
                if self._session.info.transaction_status is TransactionStatus.INERROR:
                    self._session.rollback()
                raise psycopg.errors.error_from_result(result)
        return [_rows(result) for result in results]

    def _result(self) -> PGresult | None:
        pgconn = self._session.pgconn
        while pgconn.is_busy():
            select.select([pgconn.socket], [], [])
            pgconn.consume_input()
        return pgconn.get_result()

    def _flush(self) -> None:
        pgconn = self._session.pgconn
        while pgconn.flush():
            readable, _, _ = select.select([pgconn.socket], [pgconn.socket], [])
            if readable:
                pgconn.consume_input()


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
