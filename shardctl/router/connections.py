"""Connections with a limit in time, and psycopg's pools of them: for tasks, and for threads.

Neither is lost when its user is cancelled, nor used by two processes when one forks.
"""

from __future__ import annotations

import asyncio
import os
import select
import time
import types
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg import errors, generators
from psycopg.adapt import AdaptersMap
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from shardctl.router.concurrency import cancellations

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator, Sequence

    from psycopg.abc import PQGen

GRACE_S = 0.25
"""How long after a server should have ended a statement by itself its answer is waited for."""
_CHANGEABLE = (
    "row_factory", "cursor_factory", "server_cursor_factory", "prepare_threshold", "prepared_max",
    "_adapters", "_num_transactions",
)  # fmt: skip
_HANDLERS = ("_notice_handlers", "_notify_handlers")
"""psycopg has no public way to take these and `_adapters` back."""

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
    home: Pool
    """The pool that it is out of."""
    lent: dict[str, Any] | None = None
    """What to restore of it, while it is in a transaction that `shard()` ends."""

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
            self.close()  # its next answer could belong to the request that was given up
            raise TimeoutError("no answer in time") from None

    def close(self) -> None:
        """Close it; in a child, leave that to the parent."""
        if self.process == os.getpid():
            super().close()

    def cancel_safe(self, *, timeout: float = 30.0) -> None:
        """Cancel what runs; in a child, do not touch the parent's statement."""
        if self.process == os.getpid():
            super().cancel_safe(timeout=timeout)


class AsyncBounded(psycopg.AsyncConnection[Any]):
    """The same for asyncio."""

    until: float | None = None
    home: AsyncPool
    lent: dict[str, Any] | None = None
    _waiting: asyncio.Task[Any] | None = None
    """The task that runs something on it."""

    def __init__(self, *given: Any, **named: Any) -> None:
        self.process = os.getpid()
        super().__init__(*given, **named)

    async def wait(self, gen: PQGen[Result], *given: Any, **named: Any) -> Result:
        """Run psycopg's generator; on a timeout close the connection and raise TimeoutError.

        Raises CancelledError, also one that asyncio lost: `asyncio.wait_for` of Python 3.11 forgets
        a cancellation when what it waits for ends at the same moment, and psycopg uses it.
        """
        _require_own(self)
        self._waiting = asyncio.current_task()
        before = cancellations()
        limited = gen if self.until is None else _limited(gen, self.until)
        try:
            result = await super().wait(limited, *given, **named)
        except _TimeUpError:
            await self.close()
            raise TimeoutError("no answer in time") from None
        finally:
            self._waiting = None
        if cancellations() > before:
            raise asyncio.CancelledError
        return result

    async def close(self) -> None:
        """Close it; in a child, leave that to the parent."""
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
            await self.close()

    async def _answer_and_grace(self) -> None:
        """Wait until something comes from the server, and a moment more."""
        loop, come, socket = asyncio.get_running_loop(), asyncio.Event(), self.pgconn.socket
        loop.add_reader(socket, come.set)
        try:
            await come.wait()
        finally:
            loop.remove_reader(socket)
        await asyncio.sleep(GRACE_S)


class Pool(ConnectionPool[Bounded]):
    """psycopg's pool, of the process that has opened it: its threads do not exist in a child."""

    same = False
    """Whether its node is known to be of the cluster."""
    failed: Exception | None = None
    """Why the last attempt to connect failed, if it did: psycopg's pool only logs that."""

    def __init__(self, *given: Any, **named: Any) -> None:
        self._process = os.getpid()
        super().__init__(*given, connection_class=Bounded, **named)

    def __del__(self) -> None:
        if self._process == os.getpid():
            super().__del__()

    def _connect(self, timeout: float | None = None) -> Bounded:
        try:
            connection = super()._connect(timeout)
        except Exception as error:
            self.failed = error
            raise
        self.failed = None
        return connection

    def putconn(self, conn: Bounded) -> None:
        """Put a connection back; in a child of the process that has it, do nothing."""
        if conn.process == os.getpid():
            super().putconn(conn)


class AsyncPool(AsyncConnectionPool[AsyncBounded]):
    """psycopg's pool, for tasks that may be cancelled at any moment."""

    same = False
    failed: Exception | None = None

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, connection_class=AsyncBounded, **named)
        self._returning: set[asyncio.Task[None]] = set()
        self._watching = asyncio.create_task(self._close_with_loop())

    async def getconn(self, timeout: float | None = None) -> AsyncBounded:  # noqa: ASYNC109  # psycopg's
        """Take a connection; raises CancelledError, also one that asyncio lost."""
        before = cancellations()
        connection = await super().getconn(timeout)
        if cancellations() > before:
            await self.putconn(connection)
            raise asyncio.CancelledError
        return connection

    async def _connect(self, timeout: float | None = None) -> AsyncBounded:  # noqa: ASYNC109  # same
        try:
            connection = await super()._connect(timeout)
        except Exception as error:
            self.failed = error
            raise
        self.failed = None
        return connection

    async def putconn(self, conn: AsyncBounded) -> None:
        """Put a connection back; in a child of the process that has it, do nothing.

        This is done to its end, whatever happens to the caller: one that is cancelled while
        psycopg's pool waits for its lock would lose the connection for ever.
        """
        if conn.process != os.getpid():
            return
        work = super().putconn(conn)
        if conn.pgconn.transaction_status == TransactionStatus.IDLE:  # psycopg in C gives numbers
            # It waits for locks alone. Mostly they are free, and then a task would take longer
            # than all the rest.
            try:
                first = work.send(None)
            except StopIteration:
                return
            work = _rest(work, first)
        returning = asyncio.create_task(work)
        self._returning.add(returning)  # the loop itself keeps no hold on it
        returning.add_done_callback(self._returning.discard)
        await asyncio.shield(returning)

    async def close(self, timeout: float = 5.0) -> None:  # noqa: ASYNC109  # psycopg's
        """Close it, and wait for connections that are on their way back."""
        await super().close(timeout)
        self._watching.cancel()
        if self._returning:
            await asyncio.wait(self._returning, timeout=timeout)

    async def _close_with_loop(self) -> None:
        """Close when the loop ends and cancels all tasks, as `asyncio.run` does.

        A worker of the pool forgets a cancellation that comes while it connects, and would wait
        for its next task for ever, and the loop for it; `close` gives each a task to end.
        """
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:  # and not GeneratorExit, as a forked child ends
            await super().close()
            raise


def is_quiet(connection: Bounded | AsyncBounded) -> bool:
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


def lend(connection: Bounded | AsyncBounded) -> None:
    """Note what a user of the connection may change on psycopg's side of it, for `restore`."""
    one: Any = connection
    one.lent = {name: getattr(one, name) for name in _CHANGEABLE}
    one.lent |= {name: list(getattr(one, name)) for name in _HANDLERS}
    # For psycopg it is in a transaction(): commit() and rollback() raise ProgrammingError.
    one._num_transactions = 1  # noqa: SLF001  # no public way either
    if one._adapters is not None:  # noqa: SLF001  # else the first use copies psycopg's own
        one._adapters = AdaptersMap(one._adapters)  # noqa: SLF001  # what is registered, there


def restore(connection: Bounded | AsyncBounded) -> None:
    """Put back what was noted; what is registered for psycopg as a whole stays."""
    for name, value in (connection.lent or {}).items():
        setattr(connection, name, value)
    connection.lent = None


def done(connection: Bounded | AsyncBounded, statements: bytes) -> PQGen[None]:
    """Run statements without rows, by `wait`; a cursor would take twice as long."""
    connection.pgconn.send_query(statements)
    for result in (yield from generators.execute(connection.pgconn)):
        if result.status != ExecStatus.COMMAND_OK:
            raise errors.error_from_result(result)


def prolong(connection: Bounded | AsyncBounded) -> None:
    """Give a connection whose time is nearly up enough of it to roll back."""
    if connection.until is not None:
        connection.until = max(connection.until, time.monotonic() + GRACE_S)


async def _rest(work: Coroutine[Any, Any, None], first: Any) -> None:
    """Carry on with what has begun in another task, and waits."""
    await _going_on(work, first)


@types.coroutine
def _going_on(work: Coroutine[Any, Any, None], waits: Any) -> Generator[Any, Any, None]:
    try:
        while True:
            try:
                got = yield waits
            except BaseException as error:  # noqa: BLE001  # the work raises it, or knows better
                waits = work.throw(error)
            else:
                waits = work.send(got)
    except StopIteration:
        return


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
