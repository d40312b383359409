"""Connections with a limit in time: a server that hangs delays callers no longer."""

from __future__ import annotations

import asyncio
import os
import select
import time
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg

if TYPE_CHECKING:
    from collections.abc import Sequence

    from psycopg.abc import PQGen

_PREPARED_MAX = 100
"""psycopg's default number of prepared statements kept on a connection."""
GRACE_S = 0.25
"""How long after a server should have ended a statement by itself its answer is waited for."""

Result = TypeVar("Result")

_asking: set[asyncio.Task[None]] = set()
"""Requests to cancel statements that are under way."""


class _TimeUpError(Exception):
    """Of the end of time within psycopg, which takes a TimeoutError for one of the socket."""


class Bounded(psycopg.Connection[Any]):
    """A connection of psycopg's that is closed when what runs on it takes too long.

    It belongs to the process that has made it: a child can neither use nor end it.
    """

    until: float | None = None
    """When to give up, on `time.monotonic`; None is never."""

    def __init__(self, *given: Any, **named: Any) -> None:
        self.process = os.getpid()
        super().__init__(*given, **named)

    def wait(self, gen: PQGen[Result], *given: Any, **named: Any) -> Result:
        """Run psycopg's generator; on a timeout close the connection and raise TimeoutError."""
        _require_own(self)
        if self.until is None:
            return super().wait(gen, *given, **named)
        try:
            return super().wait(_limited(gen, self.until), *given, **named)
        except _TimeUpError:
            self.sever()  # its next answer could belong to the request that was given up
            raise TimeoutError("no answer in time") from None

    def close(self) -> None:
        """Close it; in a child, leave that to the parent."""
        self.sever()

    def sever(self) -> None:
        """End the connection to the server, also where `close` gives it back to its pool."""
        if self.process == os.getpid():
            super().close()

    def cancel_safe(self, *, timeout: float = 30.0) -> None:
        """Cancel what runs; in a child, do not touch the parent's statement."""
        if self.process == os.getpid():
            super().cancel_safe(timeout=timeout)


class AsyncBounded(psycopg.AsyncConnection[Any]):
    """The same for asyncio."""

    until: float | None = None
    _waiting: asyncio.Task[Any] | None = None
    """The task that runs something on it."""

    def __init__(self, *given: Any, **named: Any) -> None:
        self.process = os.getpid()
        super().__init__(*given, **named)

    async def wait(self, gen: PQGen[Result], *given: Any, **named: Any) -> Result:
        """Run psycopg's generator; on a timeout close the connection and raise TimeoutError."""
        _require_own(self)
        self._waiting = asyncio.current_task()
        try:
            if self.until is None:
                return await super().wait(gen, *given, **named)
            return await super().wait(_limited(gen, self.until), *given, **named)
        except _TimeUpError:
            await self.sever()
            raise TimeoutError("no answer in time") from None
        finally:
            self._waiting = None

    async def close(self) -> None:
        """Close it; in a child, leave that to the parent."""
        await self.sever()

    async def sever(self) -> None:
        """End the connection to the server, also where `close` gives it back to its pool."""
        if self.process == os.getpid():
            await super().close()

    async def cancel_safe(self, *, timeout: float = 30.0) -> None:  # noqa: ASYNC109  # psycopg's
        """Cancel what runs, as psycopg does for a task that is cancelled.

        Not where its time is over: a server that answers ends it by itself, and on one that does
        not the request would wait, too. A request that was begun is never broken off: PgBouncer
        1.18 crashes when a client hangs up while its request is passed on. Where the statement
        of a cancelled task has ended and the request has not, the connection is closed: PgBouncer
        lets requests wait while an alias is paused, and PAUSE waits for this transaction. In a
        child, the parent's statement is not touched.
        """
        if self.process != os.getpid():
            return
        if self.until is not None and time.monotonic() >= self.until - GRACE_S:
            return
        asking = asyncio.create_task(super().cancel_safe(timeout=timeout))
        _asking.add(asking)  # the loop itself keeps no hold on it
        asking.add_done_callback(_forget)
        waits = [asking]
        if asyncio.current_task() is self._waiting:  # and so no other task reads from the socket
            waits.append(asyncio.create_task(self._answer_and_grace()))
        await _first_of(waits)
        if asking.done():
            asking.result()
        else:
            await self.sever()

    async def _answer_and_grace(self) -> None:
        """Wait until something comes from the server, and a moment more."""
        loop, come, socket = asyncio.get_running_loop(), asyncio.Event(), self.pgconn.socket
        loop.add_reader(socket, come.set)
        try:
            await come.wait()
        finally:
            loop.remove_reader(socket)
        await asyncio.sleep(GRACE_S)


def is_quiet(connection: psycopg.BaseConnection[Any]) -> bool:
    """Return whether nothing arrived since the last answer: neither a message nor an end.

    It costs a system call and no round trip. A server or pooler that ends connections closes
    their sockets, which shows here before anything is sent.
    """
    looking = select.poll()
    try:
        looking.register(connection.pgconn.socket, select.POLLIN)
    except psycopg.OperationalError:  # it has been closed on this side
        return False
    return not looking.poll(0)


def restore(connection: Bounded | AsyncBounded, threshold: int | None) -> None:
    """Put back what a user of the connection may have changed on psycopg's side of it.

    `threshold` is its own `prepare_threshold`. All else a user changes on an object of its own.
    """
    connection.until = None
    connection.prepare_threshold = threshold
    connection.prepared_max = _PREPARED_MAX


def prolong(connection: Bounded | AsyncBounded) -> None:
    """Give a connection whose time is nearly up enough of it to roll back."""
    if connection.until is not None:
        connection.until = max(connection.until, time.monotonic() + GRACE_S)


def _forget(asking: asyncio.Task[None]) -> None:
    """Drop a request that has ended, and its error, which no task may be waiting for."""
    _asking.discard(asking)
    if not asking.cancelled():
        asking.exception()


async def _first_of(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Wait for any of them, even if the caller is cancelled during the wait, and again.

    All but the first are cancelled then.
    """
    cancelled: asyncio.CancelledError | None = None
    while not any(task.done() for task in tasks):
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError as error:
            cancelled = error
    for task in tasks[1:]:
        task.cancel()
    if cancelled is not None:
        raise cancelled


def _require_own(connection: Bounded | AsyncBounded) -> None:
    """Refuse a connection of another process's: nothing may be sent on it from here."""
    if connection.process != os.getpid():
        raise psycopg.OperationalError("the connection belongs to another process, which forked")


def _limited(gen: PQGen[Result], until: float) -> PQGen[Result]:
    """Let psycopg's generator run until then: it is resumed ten times a second, if only to look.

    What has come already is always taken.
    """
    try:
        state = next(gen)
        while True:
            ready = yield state
            state = gen.send(ready)
            if time.monotonic() >= until:
                raise _TimeUpError
    except StopIteration as done:
        result: Result = done.value
        return result
