"""A client's sessions, and its operations on a shard: recorded when sent and acknowledged."""

from __future__ import annotations

import contextlib
import os
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import generators, sql, waiting
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import ConnStatus, DiagnosticField, ExecStatus

from shardctl.libpq import reason_of
from shardctl.router import NoConnection, PoolSettings, ShardedDatabase, ShardMoved
from shardctl.traffic.client_routes import PURPOSE, TABLE, Statements
from shardctl.traffic.record import Kind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from random import Random

    from psycopg.pq.abc import PGresult

    from shardctl.topology.model import ShardId, Topology
    from shardctl.traffic.record import Record

CANNOT_CONNECT = "08001"
"""SQLSTATE for a failed login: libpq does not report the server's."""
LOST = "08006"
"""SQLSTATE for a connection that was lost without a message of the server."""
MOVED = "moved"
"""Instead of a SQLSTATE: the router reports that a transaction's shard has moved."""


_INTERVAL_S = 1.0
"""How often a wait for a login wakes up."""


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
        seconds = float(conninfo_to_dict(conninfo)["connect_timeout"] or 0) or None
        try:  # a third of the processor time that psycopg's own connection takes
            self._pq = waiting.wait_conn(generators.connect(conninfo), _INTERVAL_S, seconds)
        except psycopg.Error as error:
            raise Lost(error.sqlstate or CANNOT_CONNECT, reason_of(error)) from error

    def run(self, statement: bytes, parameters: Sequence[bytes] = ()) -> PGresult:
        """Execute a statement and wait for its answer; raises Refused and Lost."""
        result: PGresult = self._pq.exec_params(statement, parameters)
        if result.status in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
            return result
        message = result.error_field(DiagnosticField.MESSAGE_PRIMARY) or result.error_message
        state = result.error_field(DiagnosticField.SQLSTATE)
        # After FATAL the server closes the connection, though libpq may not have noticed.
        fatal = result.error_field(DiagnosticField.SEVERITY_NONLOCALIZED) == b"FATAL"
        kind = Lost if fatal or self._pq.status != ConnStatus.OK else Refused
        text = " ".join(message.decode(errors="replace").split())
        raise kind(state.decode() if state else LOST, text)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run what the block does in one transaction; raises Refused and Lost."""
        self.run(b"BEGIN")
        try:
            yield
        except Lost:
            raise
        except Refused:
            self.run(b"ROLLBACK")
            raise
        self.run(b"COMMIT")

    def cut(self) -> None:
        """Shut the connection down; unlike `close`, another thread may call this during `run`."""
        with (
            contextlib.suppress(OSError, psycopg.OperationalError),  # it is already broken
            socket.socket(fileno=os.dup(self._pq.socket)) as shared,
        ):
            shared.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the session."""
        self._pq.finish()


STATEMENTS = Statements(b"insert", b"update", b"select")
"""Names of the texts below, whose parameters psycopg writes."""

_TABLE = sql.Identifier(TABLE)
_TEXTS = {
    b"insert": sql.SQL(
        "INSERT INTO {} (client, number, version, payload)"
        " VALUES (%(p1)s, %(p2)s, 1, %(p3)s) RETURNING id"
    ).format(_TABLE),
    b"update": sql.SQL(
        "UPDATE {} SET version = %(p2)s, payload = %(p3)s WHERE id = %(p1)s AND version < %(p2)s"
    ).format(_TABLE),
    b"select": sql.SQL("SELECT version FROM {} WHERE id = %(p1)s").format(_TABLE),
}


def open_router(topology: Topology, clients: int) -> ShardedDatabase:
    """Open the router that all clients share; raises NoNodeAliases."""
    pool = PoolSettings(max_size=clients)
    return ShardedDatabase(topology, connect={"application_name": PURPOSE}, pool=pool)


class RoutedSession:
    """A client's use of one shard; it holds a connection only in a transaction."""

    def __init__(self, router: ShardedDatabase, shard: ShardId) -> None:
        self._router = router
        self._shard = shard
        self._connection: psycopg.Connection[Any] | None = None

    def run(self, statement: bytes, parameters: Sequence[bytes] = ()) -> PGresult:
        """Run the named operation; raises Refused, with MOVED for a transaction to repeat."""
        text = _TEXTS[statement]
        given = {f"p{n}": one.decode() for n, one in enumerate(parameters, 1)}
        with _translated():
            if self._connection is not None:
                cursor = self._connection.execute(text, given)
            else:
                cursor = self._router.execute(text, given, number=self._shard)
        return cursor.pgresult  # type: ignore[return-value]  # it was executed

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run what the block does in one transaction; raises the same."""
        with _translated():
            try:
                # It looks at the cause of the block's error, and raises ShardMoved if it applies.
                with self._router.shard(number=self._shard) as self._connection:
                    yield
            finally:
                self._connection = None

    def cut(self) -> None:
        """Do nothing: an operation that waits at a pooler ends with its `query_wait_timeout`."""

    def close(self) -> None:
        """Do nothing: the router has the connections."""


@contextmanager
def _translated() -> Iterator[None]:
    """Raise Refused and Lost for the router's errors."""
    try:
        yield
    except ShardMoved as error:
        raise Refused(MOVED, error.message) from error
    except NoConnection as error:
        raise Lost(CANNOT_CONNECT, error.message) from error
    except psycopg.Error as error:
        lost = isinstance(error, psycopg.OperationalError) and error.sqlstate is None
        kind = Lost if lost else Refused
        raise kind(error.sqlstate or LOST, reason_of(error)) from error


_PAYLOAD = b"a sunset, https://photos.example/".ljust(80, b".")


_WEIGHTS = {Kind.insert: 45, Kind.update: 20, Kind.select: 25, Kind.both: 10}
_KINDS = tuple(kind for kind, weight in _WEIGHTS.items() for _ in range(weight))


class Insert:
    """A new row."""

    def __init__(self, record: Record, shard: ShardId) -> None:
        self._record = record
        self._number = record.attempt_insert(shard)
        self._parameters = (b"%d" % record.client, b"%d" % self._number, _PAYLOAD)

    def run(self, session: Session | RoutedSession, statements: Statements) -> None:
        """Insert it; the database makes its id."""
        result = session.run(statements.insert, self._parameters)
        self._id = int(result.get_value(0, 0) or b"")

    def acknowledge(self) -> None:
        """Record its id."""
        self._record.inserted(self._number, self._id)


class Update:
    """The next version of a row whose insert was acknowledged."""

    def __init__(self, record: Record, number: int) -> None:
        self._record = record
        self._number = number
        self._expected = record.acknowledged[number]
        self._version = record.attempt_update(number)
        self._parameters = (b"%d" % record.ids[number], b"%d" % self._version, _PAYLOAD)

    def run(self, session: Session | RoutedSession, statements: Statements) -> None:
        """Update it."""
        self._rows = session.run(statements.update, self._parameters).command_tuples

    def acknowledge(self) -> None:
        """Record the version, or that there was no row to update."""
        if self._rows:
            self._record.updated(self._number, self._version)
        else:
            self._record.found_stale(self._number, self._expected, None)


class Select:
    """A read of a row whose insert was acknowledged."""

    def __init__(self, record: Record, number: int) -> None:
        self._record = record
        self._number = number
        self._expected = record.acknowledged[number]
        self._parameters = (b"%d" % record.ids[number],)

    def run(self, session: Session | RoutedSession, statements: Statements) -> None:
        """Read it."""
        self._result = session.run(statements.select, self._parameters)

    def acknowledge(self) -> None:
        """Compare the version with the possible ones."""
        seen = int(self._result.get_value(0, 0) or b"0") if self._result.ntuples else None
        if seen is None or not self._expected <= seen <= self._record.attempted[self._number]:
            self._record.found_stale(self._number, self._expected, seen)


class Both:
    """An insert and an update in one transaction."""

    def __init__(self, insert: Insert, update: Update) -> None:
        self._insert = insert
        self._update = update

    def run(self, session: Session | RoutedSession, statements: Statements) -> None:
        """Run both and commit."""
        with session.transaction():
            self._insert.run(session, statements)
            self._update.run(session, statements)

    def acknowledge(self) -> None:
        """Record both."""
        self._insert.acknowledge()
        self._update.acknowledge()


Operation = Insert | Update | Select | Both


def draw(
    random: Random, record: Record, shard: ShardId, *, busy: Collection[int] = ()
) -> tuple[Kind, Operation, int | None]:
    """Create an operation, and return its kind and the number of the row it updates or reads.

    It becomes an insert if the shard has no row, or if the chosen row is `busy`: a concurrent
    change by another operation would look like a stale row.
    """
    kind = _KINDS[int(random.random() * len(_KINDS))]
    number = None if kind is Kind.insert else record.pick(shard)
    if number is None or number in busy:
        return Kind.insert, Insert(record, shard), None
    if kind is Kind.update:
        return kind, Update(record, number), number
    if kind is Kind.select:
        return kind, Select(record, number), number
    return kind, Both(Insert(record, shard), Update(record, number)), number
