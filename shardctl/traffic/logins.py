"""The open loop: a login for every operation, at a fixed rate, however long answers take."""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict

from shardctl.libpq import reason_of
from shardctl.traffic import operations
from shardctl.traffic.client import FENCE, MAP_S, Worker
from shardctl.traffic.operations import CANNOT_CONNECT, LOST, Lost, Refused, judged
from shardctl.traffic.record import OK, Kind

if TYPE_CHECKING:
    import threading
    from collections.abc import Coroutine, Sequence

    from psycopg.pq.abc import PGconn, PGresult

    from shardctl.topology.model import NodeName, ShardId
    from shardctl.traffic.client_routes import ClientRoute, Statements
    from shardctl.traffic.fleet import Owners
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


MOST = 400
"""The most connections at once; below the sandbox's max_client_conn, and a process's file limit.

Further operations wait for one of them to end, and their latency includes the wait.
"""

MOST_DIRECT = 40
"""The same without a pooler: PostgreSQL has 100 connections, and clients and moves need theirs."""

_WAITING = 10_000
"""The most operations that may be due and not done; then no more become due."""
_WARMING = 16
_LOOK_S = 0.05
"""How often to check whether another thread has ended the load."""


class Logins(Worker):
    """Operations that start at their scheduled time, each over its own connection.

    A client of the closed loop waits for its answer before its next operation, so a stall delays
    one operation. Here a stall delays all operations that become due during it, as with independent
    users of an application. Latencies count from the scheduled time, so that a delay of this
    process does not make them look shorter.
    """

    def __init__(
        self,
        number: int,
        shards: Sequence[ShardId],
        *,
        route: ClientRoute,
        owners: Owners,
        rate: float,
        patience_s: float,
        stop: threading.Event,
    ) -> None:
        super().__init__(number, shards, route=route, owners=owners, stop=stop, name="logins")
        self.rate = rate
        """Logins a second."""
        self.late_s = 0.0
        """The longest delay of an operation's start; latencies include it.

        It shows a rate that was not kept, for lack of a processor or of connections.
        """
        self._patience_s = patience_s
        self._known: dict[ShardId, Statements] = {}
        self._conninfos: dict[tuple[int, ShardId | NodeName], tuple[str, float]] = {}
        self._busy: set[int] = set()
        """Rows that a running operation updates or reads."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    def cut(self) -> None:
        """Abort all running operations."""
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # the loop has already ended
                loop.call_soon_threadsafe(self._cancel)

    def _work(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self._warm_all()
        self._warm.set()
        await asyncio.to_thread(self._go.wait)
        room = asyncio.Semaphore(MOST if self._way.poolers else MOST_DIRECT)
        number = 0
        while not self._stop.is_set():
            due = self._began + number / self.rate
            if due >= self._ends:
                break
            if len(self._tasks) >= _WAITING:
                await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
            early = due - time.perf_counter()
            if early > 0:
                await asyncio.sleep(min(early, _LOOK_S))
                continue
            self._start(self._operate(number, due, room))
            number += 1
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failure = self.failure or error
            self._stop.set()

    def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _warm_all(self) -> None:
        """Run what is slow only the first time; errors here are ignored, they will recur."""
        room = asyncio.Semaphore(_WARMING)

        async def one(number: int, shard: ShardId) -> None:
            async with room:
                if self._stop.is_set():
                    return
                to = self._owners.newest.owners[shard] if self._way.by_map else shard
                with suppress(Refused):
                    visit = await self._visit(number, to)
                    try:
                        await visit.run(self._statements(shard).select, (b"0",))
                    finally:
                        visit.end()

        poolers = range(max(1, len(self._way.poolers)))
        for shard in self._shards:
            for number in poolers:
                self._start(one(number, shard))
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _operate(self, number: int, due: float, room: asyncio.Semaphore) -> None:
        """Run one operation to its end, and record it."""
        shard = self._next_shard()
        kind, row, outcome = Kind.insert, None, OK
        try:
            async with room:
                self.late_s = max(self.late_s, time.perf_counter() - due)
                kind, operation, row = operations.draw(
                    self._random, self.record, shard, busy=self._busy
                )
                if row is not None:
                    self._busy.add(row)
                await self._attempt(number, shard, operation)
        except Refused as error:
            outcome = self._failed(error.code, error.message)
            self._owners.look()
        except asyncio.CancelledError:  # by `cut`
            outcome = self._failed(LOST, "no answer when the load ended")
        else:
            operation.acknowledge()
        if row is not None:
            self._busy.discard(row)
        ended = time.perf_counter()
        self.record.done(shard, kind, outcome, ended - due, ended - self._began)

    def _failed(self, code: str, message: str) -> int:
        return self.record.failed(code, message, time.perf_counter() - self._began)

    def _next_shard(self) -> ShardId:
        """Choose a shard: first each in turn, then at random."""
        turn, count = self._turn, len(self._shards)
        self._turn += 1
        return self._shards[turn if turn < count else int(self._random.random() * count)]

    async def _attempt(self, number: int, shard: ShardId, operation: Operation) -> None:
        """Run an operation on the shard's node; see `Client._attempt`. Raises Refused and Lost."""
        deadline = time.perf_counter() + self._patience_s
        fenced = 0
        while True:
            known = self._owners.newest
            to = known.owners[shard] if self._way.by_map else shard
            visit = await self._visit(number, to)
            try:
                await visit.carry_out(operation, self._statements(shard))
            except Lost:
                raise
            except Refused as error:
                late = time.perf_counter() > deadline
                if not self._way.by_map or error.code not in FENCE or late:
                    raise
                fenced = 1
            else:
                self.record.fenced += fenced
                return
            finally:
                visit.end()
            await asyncio.to_thread(self._owners.newer, known.version, seconds=MAP_S)

    async def _visit(self, number: int, to: ShardId | NodeName) -> Visit:
        """Log in, to the poolers in turn. Raises Lost."""
        pooler = number % max(1, len(self._way.poolers))
        found = self._conninfos.get((pooler, to))
        if found is None:
            text = self._way.conninfo(pooler, to)
            found = text, float(conninfo_to_dict(text)["connect_timeout"] or 0) or math.inf
            self._conninfos[pooler, to] = found
        conninfo, seconds = found
        return await Visit.begin(conninfo, seconds=seconds)

    def _statements(self, shard: ShardId) -> Statements:
        found = self._known.get(shard)
        if found is None:
            found = self._known[shard] = self._way.statements(shard)
        return found
