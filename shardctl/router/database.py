"""The face for threads."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from typing import TYPE_CHECKING, Any, Self

import psycopg
from psycopg_pool import ConnectionPool, PoolTimeout

from shardctl.router import fence, plans, requests, statements
from shardctl.router.core import Routed
from shardctl.router.errors import NoConnection
from shardctl.router.requests import EXPECTED, Answer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import TracebackType

    from shardctl.router.requests import Parameters, Plan, Request, Result, Row
    from shardctl.router.scatter import Scatter
    from shardctl.router.settings import NodeHealth, Stats
    from shardctl.router.statements import Names, Order, Where
    from shardctl.topology.keys import Key
    from shardctl.topology.model import NodeName, ShardId

Connection = psycopg.Connection[Any]

_THREADS = 64
"""Calls that ask several nodes share these; each uses `width` of them at the most."""
_UNDONE = object()


class ShardedDatabase(Routed):
    """A sharded database for applications with threads, which may share it.

    Use it in a `with`, or call `close`; make it after a fork. `source` is a topology (or its
    file), or the connection string of a node or of a pooler's alias: a string with `=` or `://`
    in it. `through` chooses between a topology's poolers and its nodes. `connect` has further
    keywords of libpq, such as `user`. `nodes` has a connection string for each node, where there
    is neither topology nor pooler. `width` is how many nodes one call asks at once. `patience` is
    for how many seconds a statement waits for a shard that is fenced and not yet anywhere else.
    Nothing is connected to before it is needed.
    """

    def _set_up(self) -> None:
        self._pools: dict[NodeName, ConnectionPool[Connection]] = {}
        self._opening = threading.Lock()
        self._alone = threading.Lock()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="shardctl-router")
        self._doing: dict[type[Request], Callable[[Any, Any], Any]] = {
            requests.Execute: self._execute,
            requests.Hold: self._keep,
            requests.On: self._on,
            requests.Release: lambda request, _: request.held.release(),
            requests.Ask: self._ask,
            requests.Wait: lambda request, _: time.sleep(request.seconds),
            requests.Alone: self._on_its_own,
            requests.Together: self._together,
            requests.First: self._first,
        }

    def open(self) -> Self:
        """Read the first map, where there is no topology; raises MapUnread.

        With a topology there is nothing to do.
        """
        self._run(self._begin())
        return self

    def close(self, timeout: float = 5.0) -> None:
        """Close all pools; connections in use are closed when they come back."""
        with self._opening:
            pools, self._pools = list(self._pools.values()), {}
        for pool in pools:
            pool.close(timeout)
        self._threads.shutdown(wait=False)

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def select(
        self,
        fields: Names,
        table: str,
        shard_key: Key,
        where: Where | None = None,
        parameters: Parameters = None,
        order_by: str | Order | Sequence[str | Order] | None = None,
        limit: int | None = None,
    ) -> list[Row]:
        """Read rows of a key's shard.

        Raises psycopg's errors, NoConnection and NameRefused, as the others do.
        """
        return self._run(
            plans.select(self._known, fields, table, shard_key, where, parameters, order_by, limit)
        )

    def insert(
        self,
        table: str,
        shard_key: Key,
        values: Mapping[str, Any],
        returning: Names | None = "id",
    ) -> Any:
        """Write a row into a key's shard; give one field of it, or a row of those named."""
        return self._run(plans.insert(self._known, table, shard_key, values, returning))

    def update(
        self,
        table: str,
        shard_key: Key,
        values: Mapping[str, Any],
        where: Where,
        parameters: Parameters = None,
    ) -> int:
        """Change rows of a key's shard; give how many."""
        return self._run(plans.update(self._known, table, shard_key, values, where, parameters))

    def delete(
        self, table: str, shard_key: Key, where: Where, parameters: Parameters = None
    ) -> int:
        """Remove rows of a key's shard; give how many."""
        return self._run(plans.delete(self._known, table, shard_key, where, parameters))

    @contextlib.contextmanager
    def shard(self, shard_key: Key) -> Iterator[Connection]:
        """Give a connection in a transaction in which unqualified names are the shard's.

        Raises ShardMoved where the shard has moved meanwhile: nothing was written, and the
        transaction may be run again.
        """
        shard = self._known.shard_of(shard_key)
        node = self._known.owner(shard)
        try:
            held = self._hold(node, None)
            try:
                with held.connection.transaction():
                    held.connection.execute(statements.search_path(self._known.schema(shard)))
                    yield held.connection
            finally:
                held.release()
        except fence.IN_TRANSACTION:
            self._run(plans.after_transaction(self._known, shard, node))
            raise

    def fetch_many(
        self,
        fields: Names,
        table: str,
        wanted: Sequence[tuple[Key, Any]],
        id_field: str = "id",
    ) -> list[Row | None]:
        """Read the rows of pairs of key and id, with one statement a node, all nodes at once.

        They come in the order asked for, None where there is none. An id is unique in its shard.
        """
        return self._run(
            plans.fetch_many(self._known, fields, table, wanted, id_field, self._width)
        )

    def scatter(
        self,
        fields: Names,
        table: str,
        where: Where | None = None,
        parameters: Parameters = None,
        order_by: str | Order | Sequence[str | Order] | None = None,
        limit: int | None = None,
        *,
        deadline: float | None = None,
        partial: bool = False,
    ) -> Scattered:
        """Read rows of all shards, in one order, as they come.

        After `deadline` seconds what has not answered raises DeadlinePassed. With `partial`,
        nodes that do not answer are left out instead, and their shards are `missing` in the
        result. Raises OrderUnsupported, too.
        """
        asked = self._scatter(fields, table, where, parameters, order_by, limit, deadline, partial)
        return Scattered(asked, self._hand_out(asked.plan()))

    def read_map(self) -> int:
        """Read the map anew, and give its version; raises MapUnread, MapWentBack.

        Nobody needs to: it is read when a shard has moved.
        """
        return self._run(self._reread())

    def check(self, timeout: float = 5.0) -> dict[NodeName, NodeHealth]:
        """Ask every node that owns shards how it is, through its pool."""
        return self._run(self._checks(timeout))

    def stats(self) -> Stats:
        """Count what was done, and what psycopg's pools tell of themselves."""
        return self._stats(self._pools)

    def _run(self, plan: Plan[Result], task: _Task | None = None) -> Result:
        """Carry a plan out; give what it returns."""
        try:
            request = next(plan)
            while True:
                request = self._step(plan, request, task)
        except StopIteration as done:
            value: Result = done.value
            return value

    def _hand_out(self, plan: Plan[Any]) -> Iterator[Row]:
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
        pool = self._pools.get(request.node) or self._pool(request.node)
        try:
            connection = pool.getconn()
        except PoolTimeout as error:
            raise NoConnection(request.node, str(error)) from error
        try:
            cursor = connection.execute(request.statement, request.parameters)
            return _answer(cursor, types=request.types)
        finally:
            pool.putconn(connection)

    def _on(self, request: requests.On, _: _Task | None) -> Answer:
        cursor = request.held.connection.execute(request.statement, request.parameters)
        return _answer(cursor, types=request.types)

    def _ask(self, request: requests.Ask, _: _Task | None) -> Answer:
        with psycopg.connect(request.conninfo, autocommit=True) as connection:
            return _answer(connection.execute(request.statement), types=False)

    def _keep(self, request: requests.Hold, task: _Task) -> _Held:
        held = self._hold(request.node, request.seconds)
        task.held.append(held)
        return held

    def _on_its_own(self, request: requests.Alone, task: _Task | None) -> Any:
        with self._alone:
            return self._run(request.plan, task)

    def _hold(self, node: NodeName, seconds: float | None) -> _Held:
        pool = self._pool(node)
        most = self._settings.timeout
        try:
            return _Held(pool, pool.getconn(most if seconds is None else min(seconds, most)))
        except PoolTimeout as error:
            raise NoConnection(node, str(error)) from error

    def _pool(self, node: NodeName) -> ConnectionPool[Connection]:
        """Give a node's pool, opened when it is first used."""
        with self._opening:
            pool = self._pools.get(node)
            if pool is None:
                conninfo = self._known.places.conninfo(node)
                options = self._pool_options()
                pool = ConnectionPool(conninfo, name=f"shardctl-{node}", **options)
                pool.open()
                self._pools[node] = pool
            return pool

    def _together(self, request: requests.Together, task: _Task | None) -> list[Any]:
        """Run plans in threads, of which the caller's is one unless there is a deadline."""
        tasks = [_Task() for _ in request.plans]
        todo = deque(range(len(tasks)))

        def work() -> None:
            while todo:
                try:
                    number = todo.popleft()
                except IndexError:  # another thread was quicker
                    return
                tasks[number].run(self, request.plans[number])

        width = min(request.width, len(tasks))
        if request.deadline is None:
            futures = [self._threads.submit(work) for _ in range(width - 1)]
            work()
            wait(futures)
        else:
            futures = [self._threads.submit(work) for _ in range(width)]
            wait(futures, max(0.0, request.deadline - time.monotonic()))
            todo.clear()
        outcomes = [one.take(task) for one in tasks]
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(outcome, EXPECTED):
                raise outcome
        return outcomes

    def _first(self, request: requests.First, _: _Task | None) -> list[Any]:
        """Run plans in threads of their own: those that others share may wait for this."""
        threads = ThreadPoolExecutor(len(request.plans), thread_name_prefix="shardctl-map")
        tasks = [_Task() for _ in request.plans]
        futures = {
            threads.submit(one.run, self, plan): one
            for one, plan in zip(tasks, request.plans, strict=True)
        }
        threads.shutdown(wait=False)
        found: list[Any] = []
        with contextlib.suppress(TimeoutError):  # those who have not told by now are not heard
            for future in as_completed(futures, request.seconds):
                outcome = futures[future].take(None)
                if isinstance(outcome, BaseException) and not isinstance(outcome, EXPECTED):
                    raise outcome
                found.append(outcome)
                if request.wanted(outcome):
                    break
        return found


class Scattered:
    """The rows of a scatter: iterate once, and `close` it (or use a `with`) to end it early."""

    def __init__(self, asked: Scatter, rows: Iterator[Row]) -> None:
        self._asked = asked
        self._rows = rows

    @property
    def missing(self) -> Mapping[ShardId, str]:
        """Shards of which rows are missing, and why; complete when the last row has come."""
        return self._asked.missing

    def __iter__(self) -> Iterator[Row]:
        return self._rows

    def close(self) -> None:
        """Give back the connections that it holds."""
        self._rows.close()  # type: ignore[attr-defined]  # it is a generator

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class _Held:
    """A connection that is out of its pool."""

    def __init__(self, pool: ConnectionPool[Connection], connection: Connection) -> None:
        self._pool = pool
        self.connection = connection
        self._released = False

    def release(self) -> None:
        """Give it back, rolled back; a second time changes nothing."""
        if self._released:
            return
        self._released = True
        with contextlib.suppress(psycopg.Error):  # it is broken; the pool sees that, too
            self.connection.rollback()
        self._pool.putconn(self.connection)


class _Task:
    """A plan that runs beside others, with the connections that it holds."""

    def __init__(self) -> None:
        self.held: list[_Held] = []
        self._outcome: Any = _UNDONE
        self._abandoned = False
        self._lock = threading.Lock()

    def run(self, face: ShardedDatabase, plan: Plan[Any]) -> None:
        """Carry the plan out; where nobody waits for it any more, tidy up after it."""
        try:
            outcome = face._run(plan, self)  # noqa: SLF001  # a part of the face
        except BaseException as error:  # noqa: BLE001  # whoever waits raises it
            outcome = error
        with self._lock:
            self._outcome = outcome
            abandoned = self._abandoned
        if abandoned or isinstance(outcome, BaseException):
            self.release()

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
        for held in self.held:
            held.release()


def _answer(cursor: psycopg.Cursor[Any], *, types: bool) -> Answer:
    if cursor.rownumber is None:  # no rows can come, as of an UPDATE
        return Answer([], cursor.rowcount)
    columns = cursor.description if types else None
    return Answer(
        cursor.fetchall(),
        cursor.rowcount,
        tuple(column.type_code for column in columns or ()),
    )
