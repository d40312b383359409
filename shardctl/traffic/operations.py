"""A client's sessions, and its operations on a shard: recorded when sent and acknowledged."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Callable
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import generators, waiting
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import ConnStatus, DiagnosticField, ExecStatus

from shardctl.libpq import reason_of
from shardctl.router import NoConnection, PoolSettings, ShardedDatabase, ShardMoved
from shardctl.traffic.client_routes import PURPOSE
from shardctl.traffic.record import Kind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from random import Random

    from psycopg.pq.abc import PGresult

    from shardctl.topology.model import ShardId
    from shardctl.traffic.client_routes import ClientRoute, Statements
    from shardctl.traffic.record import Record

CANNOT_CONNECT = "08001"
"""SQLSTATE for a failed login: libpq does not report the server's."""
LOST = "08006"
"""SQLSTATE for a connection that was lost without a message of the server."""
MOVED = "moved"
"""Instead of a SQLSTATE: the router reports that a transaction's shard has moved."""


FENCED_S = 10.0
"""How long an operation is tried again, and rows are looked for, while a shard is fenced."""
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


_PARAMETER = re.compile(r"\$(\d)")


def open_router(route: ClientRoute, clients: int) -> ShardedDatabase:
    """Open the router that all clients share, or from which they have the map.

    Raises NoNodeAliases.
    """
    return ShardedDatabase(
        route.topology,
        through="nodes" if route.by_map else None,
        connect={"application_name": PURPOSE},
        pool=PoolSettings(max_size=max(1, clients)),
        patience=FENCED_S,
    )


class RoutedSession:
    """A client's use of one shard; it holds a connection only in a transaction."""

    def __init__(self, router: ShardedDatabase, shard: ShardId) -> None:
        self._router = router
        self._shard = shard
        self._connection: psycopg.Connection[Any] | None = None

    def run(self, statement: bytes, parameters: Sequence[bytes] = ()) -> PGresult:
        """Run a statement; raises Refused, with MOVED for a transaction to repeat."""
        text: Any = _PARAMETER.sub(r"%(p\1)s", statement.decode())  # psycopg writes the values
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


Acknowledge = Callable[[], None]
"""Records what the answer showed."""
Operation = Callable[["Session | RoutedSession", "Statements"], Acknowledge]


def _insert(record: Record, shard: ShardId) -> Operation:
    """Make an operation that writes a new row; the database makes its id."""
    number = record.attempt_insert(shard)
    parameters = (b"%d" % record.client, b"%d" % number, _PAYLOAD)

    def run(session: Session | RoutedSession, statements: Statements) -> Acknowledge:
        identity = int(session.run(statements.insert, parameters).get_value(0, 0) or b"")
        return partial(record.inserted, number, identity)

    return run


def _update(record: Record, number: int) -> Operation:
    """Make one that writes the next version of a row whose insert was acknowledged."""
    expected, version = record.acknowledged[number], record.attempt_update(number)
    parameters = (b"%d" % record.ids[number], b"%d" % version, _PAYLOAD)

    def run(session: Session | RoutedSession, statements: Statements) -> Acknowledge:
        if session.run(statements.update, parameters).command_tuples:
            return partial(record.updated, number, version)
        return partial(record.found_stale, number, expected, None)

    return run


def _select(record: Record, number: int) -> Operation:
    """Make one that reads such a row, and compares its version with the possible ones."""
    expected, identity = record.acknowledged[number], b"%d" % record.ids[number]

    def run(session: Session | RoutedSession, statements: Statements) -> Acknowledge:
        result = session.run(statements.select, (identity,))
        seen = int(result.get_value(0, 0) or b"0") if result.ntuples else None
        if seen is None or not expected <= seen <= record.attempted[number]:
            return partial(record.found_stale, number, expected, seen)
        return lambda: None

    return run


def _both(insert: Operation, update: Operation) -> Operation:
    """Make one that does two in one transaction."""

    def run(session: Session | RoutedSession, statements: Statements) -> Acknowledge:
        with session.transaction():
            first, second = insert(session, statements), update(session, statements)

        def acknowledge() -> None:
            first()
            second()

        return acknowledge

    return run


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
        return Kind.insert, _insert(record, shard), None
    if kind is Kind.update:
        return kind, _update(record, number), number
    if kind is Kind.select:
        return kind, _select(record, number), number
    return kind, _both(_insert(record, shard), _update(record, number)), number
