"""How asyncio carries plans out: pools of connections, and plans side by side."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg_pool import AsyncConnectionPool

from shardctl.router import plans, requests
from shardctl.router.bounded import AsyncBounded, prolong, restore
from shardctl.router.core import Routed
from shardctl.router.errors import AnotherLoop, Closed
from shardctl.router.requests import EXPECTED, Answer
from shardctl.router.room import Room
from shardctl.router.task_pool import TaskPool, cancellations, try_again

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        AsyncIterator,
        Awaitable,
        Callable,
        Iterable,
        Mapping,
    )

    from shardctl.router.requests import Parameters, Plan, Request, Result, Row
    from shardctl.topology.model import NodeName, ShardId

AsyncConnection = psycopg.AsyncConnection[Any]
Holding = list["_Held | _Reserved"]


class InTasks(Routed):
    """What carries plans out for the face for asyncio."""

    def _set_up(self) -> None:
        self._pools: dict[NodeName, TaskPool] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening = asyncio.Lock()
        self._alone = asyncio.Lock()
        self._room = Room(self._settings.max_size)
        self._room_changed = asyncio.Event()
        self._abandoned: set[asyncio.Task[Any]] = set()
        self._doing: dict[type[Request], Callable[[Any, Any], Awaitable[Any]]] = {
            requests.Execute: self._execute,
            requests.Reserve: self._reserve,
            requests.Hold: self._keep,
            requests.On: self._on,
            requests.Begin: lambda request, _: request.held.begin(),
            requests.Release: lambda request, _: request.held.release(),
            requests.Ask: self._ask,
            requests.Wait: lambda request, _: asyncio.sleep(request.seconds),
            requests.Alone: self._on_its_own,
            requests.Together: self._together,
            requests.First: self._first,
        }

    def _who(self) -> asyncio.Task[Any] | None:
        try:
            return asyncio.current_task()
        except RuntimeError:  # a scatter may be prepared outside of the loop
            return None

    async def _run(self, plan: Plan[Result], holding: Holding | None = None) -> Result:
        """Carry a plan out; give what it returns. Raises AnotherLoop."""
        self._require_loop()
        try:
            request = next(plan)
            while True:
                try:
                    answer = await self._do(request, holding)
                except Exception as error:  # noqa: BLE001  # the plan raises it, or knows better
                    request = plan.throw(error)
                else:
                    request = plan.send(answer)
        except StopIteration as done:
            value: Result = done.value
            return value

    async def _hand_out(self, plan: Plan[Any]) -> AsyncGenerator[Row, None]:
        """Carry a plan out that hands rows out; raises AnotherLoop."""
        self._require_loop()
        holding: Holding = []
        try:
            request = next(plan)
            while True:
                if isinstance(request, requests.Rows):
                    for row in request.rows:
                        yield row
                    request = next(plan)
                    continue
                try:
                    answer = await self._do(request, holding)
                except Exception as error:  # noqa: BLE001  # same
                    request = plan.throw(error)
                else:
                    request = plan.send(answer)
        except StopIteration:
            return
        finally:
            await _release(holding)

    async def _do(self, request: Request, holding: Holding | None) -> Any:
        """Handle a request; raises CancelledError, also one that asyncio lost.

        `asyncio.wait_for` of Python 3.11 forgets a cancellation when what it waits for ends at
        the same moment, and psycopg uses it.
        """
        before = cancellations()
        answer = await self._doing[type(request)](request, holding)
        if cancellations() > before:
            raise asyncio.CancelledError
        return answer

    async def _execute(self, request: requests.Execute, _: Any) -> Answer:
        if request.until is not None:
            return await self._execute_until(request, request.until)
        pool = self._pools.get(request.node) or await self._pool(request.node)
        connection = await pool.take(request.seconds)
        try:
            cursor = await connection.execute(request.statement, request.parameters)
            return await _answer(cursor, types=request.types)
        finally:
            await pool.give_back(connection)

    async def _execute_until(self, request: requests.Execute, until: float) -> Answer:
        seconds = max(0.0, until - time.monotonic())
        held = await self._hold(request.node, seconds, until)
        try:
            return await held.run(request.statement, request.parameters, types=request.types)
        finally:
            await held.release()

    async def _on(self, request: requests.On, _: Any) -> Answer:
        held: _Held = request.held
        return await held.run(request.statement, request.parameters, types=request.types)

    async def _ask(self, request: requests.Ask, _: Any) -> Answer:
        connect = psycopg.AsyncConnection.connect
        async with await connect(request.conninfo, autocommit=True) as connection:
            return await _answer(await connection.execute(request.statement), types=False)

    async def _keep(self, request: requests.Hold, holding: Holding) -> _Held:
        held = await self._hold(request.node, request.seconds, request.until)
        holding.append(held)
        return held

    async def _reserve(self, request: requests.Reserve, holding: Holding) -> _Reserved:
        wanted: Mapping[NodeName, int] = request.wanted
        refused: Mapping[NodeName, str] = {}
        seconds = self._room.patience(request, self._settings.timeout)
        try:
            async with asyncio.timeout(seconds):
                while not self._room.take(wanted):
                    await self._room_changed.wait()
        except TimeoutError:
            wanted, refused = self._room.take_some(request, seconds)
        reserved = _Reserved(self, wanted, refused)
        holding.append(reserved)
        return reserved

    def _require_loop(self) -> None:
        """See that this is the loop in which it was first used; raises AnotherLoop, Closed."""
        running = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = running
        elif self._loop is not running:
            raise Closed if self._closed else AnotherLoop

    async def _close(self, timeout: float) -> None:  # noqa: ASYNC109  # the pool's own
        if not self._closed and self._loop is not None and not self._loop.is_closed():
            self._require_loop()
        async with self._opening:
            self._closed = True
            pools, self._pools = list(self._pools.values()), {}
        async with contextlib.AsyncExitStack() as stack:  # all of them, also where one fails
            for pool in pools:
                stack.push_async_callback(pool.close, timeout)

    def make_room(self, places: Mapping[NodeName, int]) -> None:
        """Return places that were reserved."""
        self._room.give_back(places)
        self._room_changed.set()
        self._room_changed = asyncio.Event()  # for those who wait from now on

    @contextlib.asynccontextmanager
    async def _transaction(self, node: NodeName, shard: ShardId) -> AsyncIterator[AsyncConnection]:
        """Give a connection in a transaction, which ends with the block."""
        holding: Holding = []
        try:
            begun = await self._run(plans.transaction(self._known, node), holding)
            connection, transaction = begun
            async with contextlib.AsyncExitStack() as stack:
                stack.push_async_exit(transaction)
                stack.enter_context(self._noted(shard, holding[-1]))
                yield connection
        finally:
            await _release(holding)

    async def _on_its_own(self, request: requests.Alone, holding: Holding | None) -> Any:
        async with self._alone:
            return await self._run(request.plan, holding)

    async def _hold(
        self, node: NodeName, seconds: float | None = None, until: float | None = None
    ) -> _Held:
        pool = await self._pool(node)
        return _Held(pool, await pool.take(seconds), until)

    async def _pool(self, node: NodeName) -> TaskPool:
        """Give a node's pool, opened when it is first used."""
        async with self._opening:
            if self._closed:
                raise Closed
            pool = self._pools.get(node)
            if pool is None:
                conninfo = self._known.places.conninfo(node)
                options = self._pool_options(node)
                made = AsyncConnectionPool(
                    conninfo,
                    connection_class=AsyncBounded,
                    name=f"shardctl-{node}",
                    reconnect_failed=try_again,
                    **options,
                )
                await made.open()
                pool = self._pools[node] = TaskPool(node, made, self._settings)
            return pool

    async def _together(self, request: requests.Together, holding: Holding | None) -> list[Any]:
        """Run plans in tasks, so many at once."""
        places = asyncio.Semaphore(request.width)
        lists: list[Holding] = [[] for _ in request.plans]
        abandoned = False

        async def one(plan: Plan[Any], held: Holding) -> Any:
            async with places:
                outcome = await self._outcome(plan, held)
            if abandoned:  # nothing else releases what it still holds
                await _release(held)
            return outcome

        tasks = [
            asyncio.create_task(one(plan, held))
            for plan, held in zip(request.plans, lists, strict=True)
        ]
        try:
            left = None
            if request.deadline is not None:
                left = max(0.0, request.deadline - time.monotonic())
            if tasks:
                await asyncio.wait(tasks, timeout=left)
        finally:
            done = [task.done() for task in tasks]
            abandoned = True
            self._abandon(task for task in tasks if not task.done())
            if holding is not None:  # first of all, whatever is raised then: it is given back
                holding += itertools.chain.from_iterable(itertools.compress(lists, done))
        return [
            task.result() if ended else TimeoutError("no answer in time")
            for task, ended in zip(tasks, done, strict=True)
        ]

    async def _first(self, request: requests.First, _: Any) -> list[Any]:
        """Run plans in tasks until one gives a result that `wanted` accepts."""
        tasks = {asyncio.create_task(self._outcome(plan, [])) for plan in request.plans}
        until = time.monotonic() + request.seconds
        found: list[Any] = []
        try:
            while tasks and not any(map(request.wanted, found)):
                done, tasks = await asyncio.wait(
                    tasks,
                    timeout=max(0.0, until - time.monotonic()),
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if not done:
                    break
                found += [task.result() for task in done]
        finally:
            self._abandon(tasks)
        return found

    async def _outcome(self, plan: Plan[Any], held: Holding) -> Any:
        """Run a plan; give what it returns or, if it is an expected error, raises."""
        try:
            return await self._run(plan, held)
        except EXPECTED as error:
            await _release(held)
            return error
        except BaseException:
            await _release(held)
            raise

    def _abandon(self, tasks: Iterable[asyncio.Task[Any]]) -> None:
        """Cancel tasks whose results are not needed; they clean up by themselves."""
        for task in tasks:
            task.cancel()
            self._abandoned.add(task)  # the loop itself keeps no hold on it
            task.add_done_callback(self._abandoned.discard)


class _Held:
    """A connection that is out of its pool."""

    def __init__(self, pool: TaskPool, connection: AsyncBounded, until: float | None) -> None:
        connection.until = until
        self._pool = pool
        self.connection = connection
        self._threshold = connection.prepare_threshold
        self._running = False
        self._released = False

    async def run(self, statement: bytes, parameters: Parameters, *, types: bool) -> Answer:
        """Run a statement; raises TimeoutError where it was given back, or takes too long."""
        if self._released:
            raise TimeoutError("the connection was given back")
        self._running = True
        try:
            cursor = await self.connection.execute(statement, parameters)
            return await _answer(cursor, types=types)
        finally:
            self._running = False
            if self._released:
                await self._give_back()

    async def begin(self) -> psycopg.AsyncTransaction:
        """Begin a transaction, which is psycopg's."""
        transaction = psycopg.AsyncTransaction(self.connection)
        await transaction.__aenter__()
        return transaction

    async def release(self) -> None:
        """Give it back, rolled back; a second time changes nothing.

        Where a statement still runs on it, in another task, that one gives it back.
        """
        if self._released:
            return
        self._released = True
        if not self._running:
            await self._give_back()

    async def _give_back(self) -> None:
        prolong(self.connection)
        try:
            # Where it is broken or does not answer, the pool sees that, too.
            with contextlib.suppress(psycopg.Error, TimeoutError):
                await self.connection.rollback()
        finally:
            restore(self.connection, self._threshold)
            await self._pool.give_back(self.connection)


class _Reserved:
    """Places in pools reserved for one caller; `refused` has each other node's reason."""

    def __init__(
        self,
        face: InTasks,
        places: Mapping[NodeName, int],
        refused: Mapping[NodeName, str],
    ) -> None:
        self.refused = refused
        self._face = face
        self._places = places

    async def release(self) -> None:
        """Return the places; a second time changes nothing."""
        self._face.make_room(self._places)
        self._places = {}


async def _release(holding: Holding) -> None:
    async with contextlib.AsyncExitStack() as stack:
        for held in holding:
            stack.push_async_callback(held.release)


async def _answer(cursor: psycopg.AsyncCursor[Any], *, types: bool) -> Answer:
    if cursor.rownumber is None:  # no rows can come, as of an UPDATE
        return Answer([], cursor.rowcount)
    columns = cursor.description if types else None
    return Answer(
        await cursor.fetchall(),
        cursor.rowcount,
        tuple(column.type_code for column in columns or ()),
    )
