"""A client's session that uses `shardctl.router`, as an application does."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
from psycopg import sql

from shardctl.libpq import reason_of
from shardctl.router import NoConnection, PoolSettings, ShardedDatabase, ShardMoved
from shardctl.traffic.client_routes import PURPOSE, TABLE, Statements
from shardctl.traffic.session import CANNOT_CONNECT, LOST, MOVED, Lost, Refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardctl.topology.model import ShardId, Topology

STATEMENTS = Statements(b"insert", b"update", b"select")
"""The router's operations: they need no SQL text."""

_TABLE = sql.Identifier(TABLE)
_WITHIN = {
    b"insert": sql.SQL(
        "INSERT INTO {} (client, number, version, payload) VALUES (%s, %s, 1, %s) RETURNING id"
    ).format(_TABLE),
    b"update": sql.SQL(
        "UPDATE {} SET version = %(v)s, payload = %(p)s WHERE id = %(id)s AND version < %(v)s"
    ).format(_TABLE),
}


class RoutedResult(NamedTuple):
    """The result of a statement, in the form of libpq's results."""

    rows: list[tuple[Any, ...]]
    command_tuples: int | None

    @property
    def ntuples(self) -> int:
        """The number of rows."""
        return len(self.rows)

    def get_value(self, row: int, column: int, /) -> bytes | None:
        """Return a value as text."""
        return str(self.rows[row][column]).encode()


def open_router(topology: Topology, clients: int) -> ShardedDatabase:
    """Open the router that all clients share; raises NoNodeAliases."""
    pool = PoolSettings(max_size=clients)
    return ShardedDatabase(topology, connect={"application_name": PURPOSE}, pool=pool)


class RoutedSession:
    """A client's use of one shard; it holds a connection only in a transaction."""

    def __init__(self, router: ShardedDatabase, shard: ShardId) -> None:
        self._router = router
        self._shard = shard
        self._block = contextlib.ExitStack()
        self._connection: psycopg.Connection[Any] | None = None
        self._error: psycopg.Error | None = None

    def run(self, statement: bytes, parameters: Sequence[bytes] = ()) -> RoutedResult:
        """Run the named operation; raises Refused, with MOVED for a transaction to repeat."""
        try:
            return self._run(statement, parameters)
        except ShardMoved as error:
            raise Refused(MOVED, error.message) from error
        except NoConnection as error:
            raise Lost(CANNOT_CONNECT, error.message) from error
        except psycopg.Error as error:
            lost = isinstance(error, psycopg.OperationalError) and error.sqlstate is None
            kind = Lost if lost else Refused
            raise kind(error.sqlstate or LOST, reason_of(error)) from error

    def cut(self) -> None:
        """Do nothing: an operation that waits at a pooler ends with its `query_wait_timeout`."""

    def close(self) -> None:
        """Return its connection; an open transaction is not committed."""
        self._error = self._error or psycopg.OperationalError("the session ends")
        with contextlib.suppress(psycopg.Error, ShardMoved):  # no caller waits for it any more
            self._run(b"ROLLBACK", ())

    def _run(self, statement: bytes, parameters: Sequence[bytes]) -> RoutedResult:
        match statement:
            case b"BEGIN":
                self._connection = self._block.enter_context(self._router.shard(self._shard))
            case b"COMMIT":
                self._connection = None
                self._block.close()
            case b"ROLLBACK":
                # The router checks the error that ended it, and raises ShardMoved if it applies.
                error, self._error, self._connection = self._error, None, None
                kind = type(error) if error is not None else None
                self._block.__exit__(kind, error, None)
            case _ if self._connection is not None:
                return self._within(self._connection, statement, parameters)
            case b"insert":
                client, number, payload = parameters
                row: dict[str, Any] = {"client": int(client), "number": int(number)}
                row |= {"version": 1, "payload": payload.decode()}
                return RoutedResult([(self._router.insert(TABLE, self._shard, row),)], 1)
            case b"update":
                number, version, payload = parameters
                values = {"version": int(version), "payload": payload.decode()}
                where, given = "id = %s AND version < %s", [int(number), int(version)]
                return RoutedResult(
                    [], self._router.update(TABLE, self._shard, values, where, given)
                )
            case _:
                given = [int(parameters[0])]
                return RoutedResult(
                    self._router.select("version", TABLE, self._shard, "id = %s", given), 1
                )
        return RoutedResult([], None)

    def _within(
        self,
        connection: psycopg.Connection[Any],
        statement: bytes,
        parameters: Sequence[bytes],
    ) -> RoutedResult:
        """Run the operation in the open transaction."""
        text = _WITHIN[statement]
        try:
            if statement == b"insert":
                client, number, payload = parameters
                given = [int(client), int(number), payload.decode()]
                return RoutedResult(connection.execute(text, given).fetchall(), 1)
            number, version, payload = parameters
            named = {"id": int(number), "v": int(version), "p": payload.decode()}
            return RoutedResult([], connection.execute(text, named).rowcount)
        except psycopg.Error as error:
            self._error = error
            raise
