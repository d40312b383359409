"""One connection of the open loop: for one operation, without its own thread."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

import psycopg
from psycopg import pq

from shardctl.libpq import reason_of
from shardctl.traffic.session import CANNOT_CONNECT, LOST, Lost, Refused, judged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from psycopg.pq.abc import PGconn, PGresult

    from shardctl.traffic.client_routes import Statements
    from shardctl.traffic.operations import Operation


class Visit:
    """An asynchronous connection."""

    def __init__(self, connection: PGconn) -> None:
        self._pq = connection

    @classmethod
    async def begin(cls, conninfo: str, *, seconds: float) -> Self:
        """Log in, within `seconds`; raises Lost."""
        connection = pq.PGconn.connect_start(conninfo.encode())
        try:
            async with asyncio.timeout(seconds):
                await _log_in(connection)
        except TimeoutError as error:
            connection.finish()
            raise Lost(CANNOT_CONNECT, f"no login within {seconds:g} s") from error
        except BaseException:
            connection.finish()
            raise
        connection.nonblocking = 1
        return cls(connection)

    async def run(self, statement: bytes, parameters: Sequence[bytes] = ()) -> PGresult:
        """Execute a statement and wait for its answer; raises Refused and Lost."""
        try:
            self._pq.send_query_params(statement, parameters)
            while self._pq.flush():
                await _until_ready(self._pq, writing=True)
            found: list[PGresult] = []
            while True:
                while self._pq.is_busy():
                    await _until_ready(self._pq, writing=False)
                    self._pq.consume_input()
                result = self._pq.get_result()
                if result is None:
                    break
                found.append(result)
        except psycopg.OperationalError as error:
            raise Lost(LOST, reason_of(error)) from error
        if not found:
            raise Lost(LOST, "the connection was lost")
        return judged(found[-1], self._pq)

    async def carry_out(self, operation: Operation, statements: Statements) -> None:
        """Run an operation, waiting for every answer; raises Refused and Lost."""
        steps = operation.steps(statements)
        try:
            request = next(steps)
            while True:
                try:
                    result = await self.run(*request)
                except Refused as error:
                    request = steps.throw(error)
                else:
                    request = steps.send(result)
        except StopIteration:
            return

    def end(self) -> None:
        """Log out."""
        self._pq.finish()


async def _log_in(connection: PGconn) -> None:
    """Run the steps of a login, as libpq's manual describes; raises Lost."""
    status = pq.PollingStatus.WRITING
    while status != pq.PollingStatus.OK:
        if connection.status == pq.ConnStatus.BAD:
            message = connection.error_message.decode(errors="replace")
            raise Lost(CANNOT_CONNECT, reason_of(psycopg.OperationalError(message)))
        await _until_ready(connection, writing=status == pq.PollingStatus.WRITING)
        status = pq.PollingStatus(connection.connect_poll())


async def _until_ready(connection: PGconn, *, writing: bool) -> None:
    """Wait until a connection's socket can be read or written."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    socket = connection.socket
    (loop.add_writer if writing else loop.add_reader)(socket, _wake, ready)
    try:
        await ready
    finally:
        (loop.remove_writer if writing else loop.remove_reader)(socket)


def _wake(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
