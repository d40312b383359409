"""A client's connection, by libpq's own calls: little Python while the clock runs."""

from __future__ import annotations

import contextlib
import os
import socket
from typing import TYPE_CHECKING

import psycopg
from psycopg.pq import ConnStatus, DiagnosticField, ExecStatus

from shardctl.libpq import reason_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from psycopg.pq.abc import PGconn, PGresult

CANNOT_CONNECT = "08001"
"""SQLSTATE for a failed login: libpq does not report the server's."""
LOST = "08006"
"""SQLSTATE for a connection that was lost without a message of the server."""
MOVED = "moved"
"""Instead of a SQLSTATE: the router reports that a transaction's shard has moved."""


class Refused(Exception):
    """A statement that the server or the pooler answered with an error; it changed nothing."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Lost(Refused):
    """A connection that failed or was lost; its statement may have been executed."""


class Session:
    """One connection; sends every statement with its parameters, and never prepares it.

    After Lost, the connection cannot be used again.
    """

    def __init__(self, conninfo: str) -> None:
        """Log in, limited only by `connect_timeout`; raises Lost."""
        try:
            self._connection = psycopg.connect(conninfo, autocommit=True)
        except psycopg.Error as error:
            raise Lost(error.sqlstate or CANNOT_CONNECT, reason_of(error)) from error
        self._pq = self._connection.pgconn

    def run(self, statement: bytes, parameters: Sequence[bytes] = ()) -> PGresult:
        """Execute a statement and wait for its answer; raises Refused and Lost."""
        return judged(self._pq.exec_params(statement, parameters), self._pq)

    def cut(self) -> None:
        """Shut the connection down; unlike `close`, another thread may call this during `run`."""
        with (
            contextlib.suppress(OSError, psycopg.OperationalError),  # it is already broken
            socket.socket(fileno=os.dup(self._pq.socket)) as shared,
        ):
            shared.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the session."""
        self._connection.close()


def judged(result: PGresult, connection: PGconn) -> PGresult:
    """Return a successful result; raises Refused and Lost for an error."""
    if result.status in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
        return result
    message = result.error_field(DiagnosticField.MESSAGE_PRIMARY) or result.error_message
    state = result.error_field(DiagnosticField.SQLSTATE)
    # After FATAL the server closes the connection, though libpq may not have noticed.
    fatal = result.error_field(DiagnosticField.SEVERITY_NONLOCALIZED) == b"FATAL"
    kind = Lost if fatal or connection.status != ConnStatus.OK else Refused
    text = " ".join(message.decode(errors="replace").split())
    raise kind(state.decode() if state else LOST, text)
