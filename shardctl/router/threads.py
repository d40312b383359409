"""How threads carry plans out: pools of connections, and plans side by side."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from typing import TYPE_CHECKING, Any

import psycopg

from shardctl.router import plans, requests
from shardctl.router.bounded import prolong, restore
from shardctl.router.core import Routed
from shardctl.router.errors import Closed
from shardctl.router.requests import EXPECTED, Answer
from shardctl.router.room import Room
from shardctl.router.thread_pool import ThreadPool

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping

    from shardctl.router.bounded import Bounded
    from shardctl.router.requests import Parameters, Plan, Request, Result, Row
    from shardctl.topology.model import NodeName, ShardId

Connection = psycopg.Connection[Any]

_THREADS = 64
"""Calls that ask several nodes share these; each uses `width` of them at the most."""
_UNDONE = object()


class InThreads(Routed):
    """What carries plans out for the face for threads."""

    def _set_up(self) -> None:
        self._pools: dict[NodeName, ThreadPool] = {}
        self._opening = threading.Lock()
        self._alone = threading.Lock()
        self._room = Room(self._settings.max_size)
        self._room_changed = threading.Condition()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="shardctl-router")
        self._doing: dict[type[Request], Callable[[Any, Any], Any]] = {
            requests.Execute: self._execute,
            requests.Reserve: self._reserve,
            requests.Hold: self._keep,
            requests.On: self._on,
            requests.Begin: lambda request, _: request.held.begin(),
            requests.Release: lambda request, _: request.held.release(),
            requests.Ask: self._ask,
            requests.Wait: lambda request, _: time.sleep(request.seconds),
            requests.Alone: self._on_its_own,
            requests.Together: self._together,
            requests.First: self._first,
        }

    def _who(self) -> int:
        return threading.get_ident()

    def _run(self, plan: Plan[Result], task: _Task | None = None) -> Result:
        """Carry a plan out; give what it returns."""
        try:
            request = next(plan)
            while True:
                request = self._step(plan, request, task)
        except StopIteration as done:
            value: Result = done.value
            return value

    def _hand_out(self, plan: Plan[Any]) -> Generator[Row, None, None]:
        """Carry a plan out that hands rows out."""
        task = _Task()
        try:
            request = next(plan)
            while True:
                if isinstance(request, requests.Rows):
                    yield from request.rows
                    request = next(plan)
                else:
                    request = self._step(plan, request, task)
        except StopIteration:
            return
        finally:
            task.release()

    def _step(self, plan: Plan[Any], request: Request, task: _Task | None) -> Request:
        """Do what is requested, and give the next request; raises StopIteration at the end."""
        try:
            answer = self._doing[type(request)](request, task)
        except Exception as error:  # noqa: BLE001  # the plan raises it, or knows better
            return plan.throw(error)
        return plan.send(answer)

    def _execute(self, request: requests.Execute, _: _Task | None) -> Answer:
        if request.until is not None:
            return self._execute_until(request, request.until)
        pool = self._pools.get(request.node) or self._pool(request.node)
        connection = pool.take(request.seconds)
        try:
            cursor = connection.execute(request.statement, request.parameters)
            return _answer(cursor, types=request.types)
        finally:
            pool.give_back(connection)

    def _execute_until(self, request: requests.Execute, until: float) -> Answer:
        seconds = max(0.0, until - time.monotonic())
        held = self._hold(request.node, seconds, until)
        try:
            return held.run(request.statement, request.parameters, types=request.types)
        finally:
            held.release()

    def _on(self, request: requests.On, _: _Task | None) -> Answer:
        held: _Held = request.held
        return held.run(request.statement, request.parameters, types=request.types)

    def _ask(self, request: requests.Ask, _: _Task | None) -> Answer:
        with psycopg.connect(request.conninfo, autocommit=True) as connection:
            return _answer(connection.execute(request.statement), types=False)

    def _keep(self, request: requests.Hold, task: _Task) -> _Held:
        held = self._hold(request.node, request.seconds, request.until)
        task.held.append(held)
        return held

    def _reserve(self, request: requests.Reserve, task: _Task) -> _Reserved:
        wanted: Mapping[NodeName, int] = request.wanted
        refused: Mapping[NodeName, str] = {}
        with self._room_changed:
            seconds = self._room.patience(request, self._settings.timeout)
            if not self._room_changed.wait_for(lambda: self._room.take(wanted), seconds):
                wanted, refused = self._room.take_some(request, seconds)
        reserved = _Reserved(self._room, self._room_changed, wanted, refused)
        task.held.append(reserved)
        return reserved

    @contextlib.contextmanager
    def _transaction(self, node: NodeName, shard: ShardId) -> Iterator[Connection]:
        """Give a connection in a transaction, which ends with the block."""
        task = _Task()
        try:
            connection, transaction = self._run(plans.transaction(self._known, node), task)
            with contextlib.ExitStack() as stack:
                stack.push(transaction)
                stack.enter_context(self._noted(shard, task.held[-1]))
                yield connection
        finally:
            for held in task.held:  # at once: a signal's exception may come before any call
                held.release()

    def _on_its_own(self, request: requests.Alone, task: _Task | None) -> Any:
        with self._alone:
            return self._run(request.plan, task)

    def _hold(
        self, node: NodeName, seconds: float | None = None, until: float | None = None
    ) -> _Held:
        pool = self._pool(node)
        return _Held(pool, pool.take(seconds), until)

    def _pool(self, node: NodeName) -> ThreadPool:
        """Give a node's pool, opened when it is first used."""
        with self._opening:
            if self._closed:
                raise Closed
            pool = self._pools.get(node)
            if pool is None:
                conninfo = self._known.places.conninfo(node)
                options = self._pool_options(node)
                pool = ThreadPool(node, conninfo, self._settings.timeout, options)
                self._pools[node] = pool
            return pool

    def _close(self, timeout: float) -> None:
        with self._opening:
            self._closed = True
            pools, self._pools = list(self._pools.values()), {}
        with contextlib.ExitStack() as stack:  # all of them, also where one fails
            stack.callback(self._threads.shutdown, wait=False)
            for pool in pools:
                stack.callback(pool.connections.close, timeout)

    def _together(self, request: requests.Together, task: _Task | None) -> list[Any]:
        """Run plans in threads; the caller's is one of them unless there is a deadline."""
        if self._closed:
            raise Closed
        tasks = [_Task() for _ in request.plans]
        todo = deque(range(len(tasks)))

        def work() -> None:
            while todo:
                try:
                    number = todo.popleft()
                except IndexError:  # another thread was quicker
                    return
                tasks[number].run(self, request.plans[number])
                if tasks[number].interrupted:
                    todo.clear()

        width = min(request.width, len(tasks))
        try:
            if request.deadline is None:
                futures = [self._threads.submit(work) for _ in range(width - 1)]
                work()
                # A future not yet started has nothing left to do. `wait` would wait until a
                # thread is free to see that, and other calls may have taken them all.
                wait([future for future in futures if not future.cancel()])
            else:
                futures = [self._threads.submit(work) for _ in range(width)]
                wait(futures, max(0.0, request.deadline - time.monotonic()))
        finally:
            # Also where a signal's exception came: what they hold is given back.
            todo.clear()
            outcomes = [one.take(task) for one in tasks]
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(outcome, EXPECTED):
                raise outcome
        return outcomes

    def _first(self, request: requests.First, _: _Task | None) -> list[Any]:
        """Run plans in threads of their own: the shared threads may wait for this."""
        threads = ThreadPoolExecutor(len(request.plans), thread_name_prefix="shardctl-map")
        tasks = [_Task() for _ in request.plans]
        futures = {
            threads.submit(one.run, self, plan): one
            for one, plan in zip(tasks, request.plans, strict=True)
        }
        threads.shutdown(wait=False)
        found: list[Any] = []
        with contextlib.suppress(TimeoutError):  # later answers are not used
            for future in as_completed(futures, request.seconds):
                outcome = futures[future].take(None)
                if isinstance(outcome, BaseException) and not isinstance(outcome, EXPECTED):
                    raise outcome
                found.append(outcome)
                if request.wanted(outcome):
                    break
        return found


class _Held:
    """A connection that is out of its pool."""

    def __init__(self, pool: ThreadPool, connection: Bounded, until: float | None) -> None:
        connection.until = until
        self._pool = pool
        self.connection = connection
        self._threshold = connection.prepare_threshold
        self._lock = threading.Lock()
        self._running = False
        self._released = False

    def run(self, statement: bytes, parameters: Parameters, *, types: bool) -> Answer:
        """Run a statement; raises TimeoutError where it was given back, or takes too long."""
        with self._lock:
            if self._released:
                raise TimeoutError("the connection was given back")
            self._running = True
        try:
            return _answer(self.connection.execute(statement, parameters), types=types)
        finally:
            with self._lock:
                self._running = False
                released = self._released
            if released:
                self._give_back()

    def begin(self) -> psycopg.Transaction:
        """Begin a transaction, which is psycopg's."""
        transaction = psycopg.Transaction(self.connection)
        transaction.__enter__()
        return transaction

    def release(self) -> None:
        """Give it back, rolled back; a second time changes nothing.

        Where a statement still runs on it, in another thread, that one gives it back.
        """
        with self._lock:
            if self._released:
                return
            self._released = True
            if self._running:
                return
        self._give_back()

    def _give_back(self) -> None:
        prolong(self.connection)
        try:
            # Where it is broken or does not answer, the pool sees that, too.
            with contextlib.suppress(psycopg.Error, TimeoutError):
                self.connection.rollback()
        finally:
            restore(self.connection, self._threshold)
            self._pool.give_back(self.connection)


class _Reserved:
    """Places in pools reserved for one caller; `refused` has each other node's reason."""

    def __init__(
        self,
        room: Room,
        changed: threading.Condition,
        places: Mapping[NodeName, int],
        refused: Mapping[NodeName, str],
    ) -> None:
        self.refused = refused
        self._room = room
        self._changed = changed
        self._places = places

    def release(self) -> None:
        """Return the places; a second time changes nothing."""
        with self._changed:
            self._room.give_back(self._places)
            self._places = {}
            self._changed.notify_all()


class _Task:
    """A plan that runs beside other plans, with the connections that it holds."""

    def __init__(self) -> None:
        self.held: list[_Held | _Reserved] = []
        self._outcome: Any = _UNDONE
        self._abandoned = False
        self._lock = threading.Lock()

    def run(self, face: InThreads, plan: Plan[Any]) -> None:
        """Run the plan; if it was abandoned, clean up after it."""
        try:
            outcome = face._run(plan, self)  # noqa: SLF001  # a part of the face
        except BaseException as error:  # noqa: BLE001  # the waiting caller raises it
            outcome = error
        with self._lock:
            self._outcome = outcome
            abandoned = self._abandoned
        if abandoned or isinstance(outcome, BaseException):
            self.release()

    @property
    def interrupted(self) -> bool:
        """Whether a signal's exception ended it, as Ctrl-C's: nothing more is to be begun."""
        return isinstance(self._outcome, BaseException) and not isinstance(self._outcome, Exception)

    def take(self, by: _Task | None) -> Any:
        """Give what came of it, and what it holds to `by`; TimeoutError where it still runs."""
        with self._lock:
            if self._outcome is _UNDONE:
                self._abandoned = True
                return TimeoutError("no answer in time")
        if by is not None:
            by.held += self.held
        return self._outcome

    def release(self) -> None:
        """Give back all that it holds."""
        with contextlib.ExitStack() as stack:
            for held in self.held:
                stack.callback(held.release)


def _answer(cursor: psycopg.Cursor[Any], *, types: bool) -> Answer:
    if cursor.rownumber is None:  # no rows can come, as of an UPDATE
        return Answer([], cursor.rowcount)
    columns = cursor.description if types else None
    return Answer(
        cursor.fetchall(),
        cursor.rowcount,
        tuple(column.type_code for column in columns or ()),
    )
