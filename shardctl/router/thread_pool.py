"""A node's connections for threads: of the process that has opened them, and of no child."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from shardctl.router.bounded import Bounded, is_quiet
from shardctl.router.errors import Closed, NoConnection

if TYPE_CHECKING:
    from shardctl.topology.handles import NodeName


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
            conninfo,
            connection_class=Bounded,
            name=f"shardctl-{node}",
            reconnect_failed=_try_again,
            **options,
        )
        self.connections.open()
        self._node = node
        self._timeout = timeout

    def take(self, seconds: float | None) -> Bounded:
        """Take a connection, within so many seconds or the pool's own.

        One that the other side has ended goes back, and psycopg's pool opens another. Raises
        NoConnection, Closed.
        """
        until = time.monotonic() + (
            self._timeout if seconds is None else min(seconds, self._timeout)
        )
        while True:
            try:
                connection = self._next(until - time.monotonic())
            except PoolTimeout as error:
                raise NoConnection(self._node, str(error)) from error
            except PoolClosed as error:
                raise Closed from error
            try:
                if is_quiet(connection) or _answers(connection, until):
                    return connection
            except BaseException:
                self.give_back(connection)
                raise
            self.give_back(connection)

    def _next(self, seconds: float) -> Bounded:
        """Take a connection of psycopg's pool.

        Exceptions of signals come in the main thread. One that came while that waits in
        psycopg's pool would lose the connection which the pool then gives to it, so another
        thread waits for the main one.
        """
        if threading.current_thread() is not threading.main_thread() or self._has_some():
            return self.connections.getconn(seconds)
        future: Future[Bounded] = Future()
        try:
            threading.Thread(target=self._wait, args=(future, seconds), daemon=True).start()
            return future.result()
        except (PoolTimeout, PoolClosed):
            raise
        except BaseException:
            future.add_done_callback(self._return)
            raise

    def _has_some(self) -> bool:
        """Return whether a connection is free and can be taken without waiting."""
        return self.connections.get_stats()["pool_available"] > 0

    def _wait(self, future: Future[Bounded], seconds: float) -> None:
        try:
            future.set_result(self.connections.getconn(seconds))
        except BaseException as error:  # noqa: BLE001  # the main thread raises it
            future.set_exception(error)

    def _return(self, future: Future[Bounded]) -> None:
        if future.exception() is None:
            self.give_back(future.result())

    def give_back(self, connection: Bounded) -> None:
        """Put a connection back; in a child of the process that has it, do nothing."""
        if connection.process == os.getpid():
            self.connections.putconn(connection)


def _try_again(pool: ConnectionPool[Any]) -> None:
    """Let a pool that has given up an attempt to connect begin another, if a call waits."""
    stats, least, most = pool.get_stats(), pool.min_size, pool.max_size
    if stats["requests_waiting"] and stats["pool_size"] < most:
        pool.resize(least + 1, max(least + 1, most))  # which opens one more
        pool.resize(least, most)


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
