"""A node's connections for threads: of the process that has opened them, and of no child."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg_pool import ConnectionPool, PoolTimeout

from shardctl.router.bounded import Bounded, is_quiet
from shardctl.router.errors import NoConnection

if TYPE_CHECKING:
    from shardctl.topology.model import NodeName


class _Connections(ConnectionPool[Bounded]):
    """psycopg's pool, whose threads are no business of a child's: they exist in the parent."""

    def __init__(self, *given: Any, **named: Any) -> None:
        self._process = os.getpid()
        super().__init__(*given, **named)

    def __del__(self) -> None:
        if self._process == os.getpid():
            super().__del__()


class ThreadPool:
    """psycopg's pool of a node."""

    def __init__(self, node: NodeName, conninfo: str, timeout: float, options: Any) -> None:
        self.connections = _Connections(
            conninfo, connection_class=Bounded, name=f"shardctl-{node}", **options
        )
        self.connections.open()
        self._node = node
        self._timeout = timeout

    def take(self, seconds: float | None) -> Bounded:
        """Take a connection, within so many seconds or the pool's own; raises NoConnection.

        One that the other side has ended goes back, and psycopg's pool opens another.
        """
        until = time.monotonic() + (
            self._timeout if seconds is None else min(seconds, self._timeout)
        )
        while True:
            try:
                connection = self.connections.getconn(until - time.monotonic())
            except PoolTimeout as error:
                raise NoConnection(self._node, str(error)) from error
            try:
                if is_quiet(connection) or _answers(connection, until):
                    return connection
            except BaseException:
                self.give_back(connection)
                raise
            self.give_back(connection)

    def give_back(self, connection: Bounded) -> None:
        """Put a connection back; in a child of the process that has it, do nothing."""
        if connection.process == os.getpid():
            self.connections.putconn(connection)


def _answers(connection: Bounded, until: float) -> bool:
    """Ask a connection that something has come on whether it is well; close it if not."""
    connection.until = until
    try:
        connection.execute("")
    except (psycopg.Error, TimeoutError):
        connection.close()
        return False
    finally:
        connection.until = None
    return True
