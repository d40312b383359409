"""A node's connections for asyncio: taken by tasks that may be cancelled at any moment."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg_pool import PoolClosed, PoolTimeout

from shardctl.router.bounded import is_quiet
from shardctl.router.errors import Closed, NoConnection

if TYPE_CHECKING:
    from psycopg_pool import AsyncConnectionPool

    from shardctl.router.bounded import AsyncBounded
    from shardctl.router.settings import PoolSettings
    from shardctl.topology.handles import NodeName


class TaskPool:
    """psycopg's pool of a node, behind a gate for as many tasks as it has connections.

    Tasks wait at the gate: psycopg's pool makes a task for each that waits, which costs more than
    a short statement.
    """

    def __init__(
        self,
        node: NodeName,
        connections: AsyncConnectionPool[AsyncBounded],
        settings: PoolSettings,
    ) -> None:
        self.connections = connections
        self._node = node
        self._timeout = settings.timeout
        self._gate = asyncio.Semaphore(settings.max_size)
        self._loop = asyncio.get_running_loop()
        self._returning: set[asyncio.Task[None]] = set()
        self._watching = asyncio.create_task(self._close_with_loop())

    async def take(self, seconds: float | None) -> AsyncBounded:
        """Take a connection, within so many seconds or the pool's own.

        One that the other side has ended goes back, and psycopg's pool opens another. Raises
        NoConnection, Closed.
        """
        until = time.monotonic() + (
            self._timeout if seconds is None else min(seconds, self._timeout)
        )
        while True:
            connection = await self._next(until)
            try:
                if is_quiet(connection) or await _answers(connection, until):
                    return connection
            except BaseException:
                await self.give_back(connection)
                raise
            await self.give_back(connection)

    async def give_back(self, connection: AsyncBounded) -> None:
        """Put a connection back, and open the gate for the next task.

        This is done to its end, whatever happens to the caller: one that is cancelled while
        psycopg's pool waits for its lock would lose the connection for ever. In a child of the
        process that has the connection nothing is done.
        """
        if connection.process != os.getpid():
            return
        returning = asyncio.create_task(self._put(connection))
        self._returning.add(returning)  # the loop itself keeps no hold on it
        returning.add_done_callback(self._returning.discard)
        await asyncio.shield(returning)

    async def close(self, timeout: float) -> None:  # noqa: ASYNC109  # the pool's own
        """Close it, and wait for connections that are on their way back."""
        if self._loop.is_closed():
            return  # psycopg ends a connection that nothing refers to any more
        await self.connections.close(timeout)
        self._watching.cancel()
        if self._returning:
            await asyncio.wait(self._returning, timeout=timeout)

    async def _close_with_loop(self) -> None:
        """Close psycopg's pool when its loop ends and cancels all tasks, as `asyncio.run` does.

        A worker of that pool forgets a cancellation that comes while it connects, and would wait
        for its next task for ever, and the loop for it; `close` gives each a task to end.
        """
        try:
            await self._loop.create_future()
        finally:
            await self.connections.close()

    async def _next(self, until: float) -> AsyncBounded:
        """Wait at the gate, and take a connection of psycopg's pool."""
        most = until - time.monotonic()
        try:
            if self._gate.locked():
                async with asyncio.timeout(most):
                    await self._gate.acquire()
            else:
                await self._gate.acquire()
        except TimeoutError:
            raise NoConnection(self._node, f"none was free for {most:.3g} s") from None
        before = cancellations()
        try:
            connection = await self.connections.getconn(until - time.monotonic())
        except PoolTimeout as error:
            self._gate.release()
            raise NoConnection(self._node, str(error)) from error
        except PoolClosed as error:
            self._gate.release()
            raise Closed from error
        except BaseException:
            self._gate.release()
            raise
        if cancellations() > before:  # before anything is sent
            await self.give_back(connection)
            raise asyncio.CancelledError
        return connection

    async def _put(self, connection: AsyncBounded) -> None:
        try:
            await self.connections.putconn(connection)
        finally:
            self._gate.release()


async def try_again(pool: AsyncConnectionPool[Any]) -> None:
    """Let a pool that has given up an attempt to connect begin another, if a call waits."""
    stats, least, most = pool.get_stats(), pool.min_size, pool.max_size
    if stats["requests_waiting"] and stats["pool_size"] < most:
        await pool.resize(least + 1, max(least + 1, most))  # which opens one more
        await pool.resize(least, most)


def cancellations() -> int:
    """Count the requests to cancel the current task that it has not dealt with."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


async def _answers(connection: AsyncBounded, until: float) -> bool:
    """Ask a connection that something has come on whether it is well; close it if not."""
    connection.until = until
    try:
        await connection.execute("")
    except (psycopg.Error, TimeoutError):
        await connection.close()
        return False
    finally:
        connection.until = None
    return True
