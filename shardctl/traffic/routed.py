"""A client's session that uses `shardctl.router`, as an application does."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from shardctl.libpq import reason_of
from shardctl.router import NoConnection, PoolSettings, ShardedDatabase, ShardMoved
from shardctl.traffic.client_routes import PURPOSE, TABLE, Statements
from shardctl.traffic.session import CANNOT_CONNECT, LOST, MOVED, Lost, Refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from psycopg.pq.abc import PGresult

    from shardctl.topology.model import ShardId, Topology

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
        self._block = contextlib.ExitStack()
        self._connection: psycopg.Connection[Any] | None = None
        self._error: psycopg.Error | None = None

    def run(self, statement: bytes, parameters: Sequence[bytes] = ()) -> PGresult:
        """Run the named operation; raises Refused, with MOVED for a transaction to repeat."""
        try:
            found: PGresult = self._run(statement, parameters)
        except ShardMoved as error:
            raise Refused(MOVED, error.message) from error
        except NoConnection as error:
            raise Lost(CANNOT_CONNECT, error.message) from error
        except psycopg.Error as error:
            lost = isinstance(error, psycopg.OperationalError) and error.sqlstate is None
            kind = Lost if lost else Refused
            raise kind(error.sqlstate or LOST, reason_of(error)) from error
        return found

    def cut(self) -> None:
        """Do nothing: an operation that waits at a pooler ends with its `query_wait_timeout`."""

    def close(self) -> None:
        """Return its connection; an open transaction is not committed."""
        self._error = self._error or psycopg.OperationalError("the session ends")
        with contextlib.suppress(psycopg.Error, ShardMoved):  # no caller waits for it any more
            self._run(b"ROLLBACK", ())

    def _run(self, statement: bytes, parameters: Sequence[bytes]) -> Any:
        match statement:
            case b"BEGIN":
                block = self._router.shard(number=self._shard)
                self._connection = self._block.enter_context(block)
            case b"COMMIT":
                self._connection = None
                self._block.close()
            case b"ROLLBACK":
                # The router checks the error that ended it, and raises ShardMoved if it applies.
                error, self._error, self._connection = self._error, None, None
                kind = type(error) if error is not None else None
                self._block.__exit__(kind, error, None)
            case _:
                given = {f"p{n}": one.decode() for n, one in enumerate(parameters, 1)}
                return self._execute(_TEXTS[statement], given).pgresult
        return None

    def _execute(self, text: sql.Composed, given: dict[str, str]) -> psycopg.Cursor[Any]:
        if self._connection is None:
            return self._router.execute(text, given, number=self._shard)
        try:
            return self._connection.execute(text, given)
        except psycopg.Error as error:
            self._error = error
            raise
