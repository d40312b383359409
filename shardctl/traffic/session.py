"""A client's connection, by libpq's own calls: little to do in Python while the clock runs."""

from __future__ import annotations

import contextlib
import os
import socket
from typing import TYPE_CHECKING, Protocol

import psycopg
from psycopg.pq import ConnStatus, DiagnosticField, ExecStatus

from shardctl.libpq import reason_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from psycopg.pq.abc import PGconn, PGresult

CANNOT_CONNECT = "08001"
"""SQLSTATE for a login that failed: libpq does not tell which it was."""
LOST = "08006"
"""SQLSTATE for a connection that broke off without a word of the server's."""
MOVED = "moved"
"""Instead of a SQLSTATE: the router tells that a transaction's shard has moved meanwhile."""


class Result(Protocol):
    """What a statement gave, as libpq tells it."""

    @property
    def ntuples(self) -> int:
        """How many rows there are."""

    @property
    def command_tuples(self) -> int | None:
        """How many rows were written."""

    def get_value(self, row_number: int, column_number: int, /) -> bytes | None:
        """Give a value as text."""


class Talk(Protocol):
    """How a client reaches one shard or node: a connection, or the router."""

    def run(self, statement: bytes, parameters: Sequence[bytes] = ()) -> Result:
        """Execute a statement and wait for its answer; raises Refused and Lost."""

    def cut(self) -> None:
        """Break off what another thread waits for, where that is possible."""

    def close(self) -> None:
        """End it."""


class Refused(Exception):
    """A statement that the server or the pooler answered with an error; nothing was done."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Lost(Refused):
    """A connection that could not be made or is gone; what was under way may have been done."""


class Session:
    """One connection; every statement is sent with its parameters, and never prepared.

    A connection that is Lost is of no more use.
    """

    def __init__(self, conninfo: str) -> None:
        """Log in, without a limit but `connect_timeout`; raises Lost."""
        try:
            self._connection = psycopg.connect(conninfo, autocommit=True)
        except psycopg.Error as error:
            raise Lost(error.sqlstate or CANNOT_CONNECT, reason_of(error)) from error
        self._pq = self._connection.pgconn

    def run(self, statement: bytes, parameters: Sequence[bytes] = ()) -> PGresult:
        """Execute a statement and wait for its answer; raises Refused and Lost."""
        return judged(self._pq.exec_params(statement, parameters), self._pq)

    def cut(self) -> None:
        """Break the connection off; unlike `close`, another thread may do so during `run`."""
        with (
            contextlib.suppress(OSError, psycopg.OperationalError),  # it is broken already
            socket.socket(fileno=os.dup(self._pq.socket)) as shared,
        ):
            shared.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the session."""
        self._connection.close()


def judged(result: PGresult, connection: PGconn) -> PGresult:
    """Give a result that is none of an error; raises Refused and Lost."""
    if result.status in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
        return result
    message = result.error_field(DiagnosticField.MESSAGE_PRIMARY) or result.error_message
    state = result.error_field(DiagnosticField.SQLSTATE)
    # After FATAL the server hangs up, though libpq may not have noticed yet.
    fatal = result.error_field(DiagnosticField.SEVERITY_NONLOCALIZED) == b"FATAL"
    kind = Lost if fatal or connection.status != ConnStatus.OK else Refused
    text = " ".join(message.decode(errors="replace").split())
    raise kind(state.decode() if state else LOST, text)
