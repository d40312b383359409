"""One statement on one session: its rows as the server sends them, in the server's own text.

psycopg's cursors turn values into Python's, which loses what a type cannot hold (infinity, the
digits of a float), and take `%` for a placeholder or the whole answer into memory. So this
speaks to libpq.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg
from psycopg import pq

from shardctl.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.postgres.connection import Connection

Row = tuple[str | None, ...]

_ROWS = 1000
_CHARACTERS = 1 << 20
"""A batch ends with either."""
_COPYING = (pq.ExecStatus.COPY_IN, pq.ExecStatus.COPY_OUT, pq.ExecStatus.COPY_BOTH)
_FIELD = pq.DiagnosticField


@dataclass(frozen=True, slots=True)
class Column:
    """A column of an answer; `type` is None where it is none of PostgreSQL's own."""

    name: str
    type: str | None


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of an answer; `command` is the server's tag, None while more rows follow.

    A statement that gives no rows has no columns.
    """

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    command: str | None


class Refused(Exception):
    """A server's error for a statement; the session is usable, its transaction has failed."""

    def __init__(self, sqlstate: str | None, message: str) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate
        self.message = message


def run(connection: Connection, statement: str) -> Iterator[Batch]:
    """Run one statement; the last batch has the command.

    Raises Refused, and psycopg.OperationalError when the session is lost. A caller who leaves
    early closes the session.
    """
    columns: tuple[Column, ...] = ()
    rows: list[Row] = []
    size = 0
    refused: Exception | None = None
    # One command, never more, and what comes, row by row.
    connection.pgconn.send_query_params(statement.encode(), None)
    connection.pgconn.set_single_row_mode()
    wire = Wire(connection.pgconn)
    wire.flush()
    for result in wire.results():
        status = result.status
        if status == pq.ExecStatus.FATAL_ERROR:
            # Only when all results have been taken does the session take another command.
            refused = refused or _refused(connection, result)
            continue
        if status in _COPYING:
            connection.close()
            raise Refused(None, "COPY with STDIN or STDOUT is not supported")
        columns = columns or _columns(connection, result)
        for number in range(result.ntuples):
            row = tuple(_text(result.get_value(number, c)) for c in range(result.nfields))
            rows.append(row)
            size += sum(len(value) for value in row if value is not None)
        if status in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
            yield Batch(columns, tuple(rows), _text(result.command_status) or "")
            rows, size = [], 0
        elif len(rows) >= _ROWS or size >= _CHARACTERS:
            yield Batch(columns, tuple(rows), None)
            rows, size = [], 0
    if refused is not None:
        raise refused


def _columns(connection: Connection, result: pq.abc.PGresult) -> tuple[Column, ...]:
    types = connection.adapters.types
    found = []
    for number in range(result.nfields):
        oid = result.ftype(number)
        known = types.get(oid)
        name = None if known is None else known.name + ("[]" if oid == known.array_oid else "")
        found.append(Column(_text(result.fname(number)) or "", name))
    return tuple(found)


def _refused(connection: Connection, result: pq.abc.PGresult) -> Exception:
    state, message = (
        _text(result.error_field(field)) for field in (_FIELD.SQLSTATE, _FIELD.MESSAGE_PRIMARY)
    )
    reason = message or _text(result.error_message) or ""
    if state is None or connection.pgconn.status == pq.ConnStatus.BAD or state.startswith("57P"):
        return psycopg.OperationalError(reason.strip())
    return Refused(state, reason)


def _text(value: bytes | None) -> str | None:
    # A database in SQL_ASCII may hold what is no UTF-8.
    return None if value is None else value.decode("utf-8", "replace")
