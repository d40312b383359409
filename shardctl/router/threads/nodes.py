"""Statements on nodes: each over a connection of the node's pool."""

# `make docs` writes this from router/tasks: do not edit.

from __future__ import annotations

import math
import time
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg import errors
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row
from psycopg_pool import PoolClosed, PoolTimeout

from shardctl.router import connections
from shardctl.router.concurrency import Lock, Loop, sleep
from shardctl.router.connections import GRACE_S, Bounded, Pool
from shardctl.router.errors import Closed, NoConnection, is_refusal, pauses
from shardctl.router.statements import Answer
from shardctl.state import map as maps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardctl.router.core import PoolSettings
    from shardctl.router.places import Known
    from shardctl.router.statements import Parameters
    from shardctl.topology.model import NodeName

Result = TypeVar("Result")

_LONGEST_S = 2_000_000.0
"""A server's timeout has 31 bits for its milliseconds."""
_CAUGHT = (
    "nothing was written: a statement of the transaction has failed, and its error was caught; use"
    " transaction() of the connection around statements that may fail"
)


class Nodes:
    """The pools of all nodes; each is opened when its node is first used.

    Times are in seconds, and `until` is on `time.monotonic`.
    """

    def __init__(self, known: Known, settings: PoolSettings) -> None:
        self.pools: dict[NodeName, Pool] = {}
        self.closed = False
        self.loop = Loop()
        self._known = known
        self._settings = settings
        self._opening = Lock()

    def execute(
        self,
        node: NodeName,
        statement: bytes,
        parameters: Parameters = (),
        *,
        until: float | None = None,
        short: bool = False,
    ) -> Answer:
        """Run one statement in a transaction of its own; again while its pooler has no server.

        At `until` the server ends it, and a little later it is given up: raises TimeoutError,
        NoConnection or QueryCanceled then. A `short` question is only given up, which saves the
        round trips of a transaction.
        """
        work = partial(_execute, statement, parameters, None if short else until)
        return self.outwaited(partial(self._once, node, work, until), until)

    def cursor(self, node: NodeName, statement: bytes, parameters: Parameters) -> Any:
        """Run statements as one message, a transaction of its own; give the last one's cursor."""
        work = partial(_cursor, statement, parameters)
        return self.outwaited(partial(self._once, node, work, None))

    @contextmanager
    def transaction(self, node: NodeName, begin: bytes) -> Iterator[Bounded]:
        """Give a connection in a transaction, which ends with the block.

        Raises InFailedSqlTransaction where the block has caught the error of a statement.
        """
        connection = self.outwaited(partial(self._begin, node, begin))
        try:
            connections.lend(connection)
            # The same text means another shard's tables and types next time.
            connection.prepare_threshold = None
            yield connection
            connections.restore(connection)
            status = connection.pgconn.transaction_status
            if status == TransactionStatus.INERROR:
                raise errors.InFailedSqlTransaction(_CAUGHT)
            if status != TransactionStatus.IDLE:  # else what it was lent to has committed
                connection.commit()
        finally:
            self._give_back(connection)

    def ask_node(self, node: NodeName, statement: bytes, until: float) -> Answer:
        """Run a short statement over a connection of the node's pool if one is idle, else as `ask`.

        A login takes several times as long, and none may be possible just then.
        """
        pool = self.pools.get(node)
        if pool is not None and pool.get_stats()["pool_available"]:
            with suppress(NoConnection):  # another call was quicker
                return self._once(node, partial(_execute, statement, (), None), until, 0.0)
        return self.ask(self._known.places.asking(node), statement)

    def ask(self, conninfo: str, statement: bytes) -> Answer:
        """Run a statement on a connection of its own."""
        self.loop.require(closed=self.closed)
        connect = psycopg.Connection.connect
        with connect(conninfo, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return Answer(cursor.fetchall(), cursor.rowcount)

    def outwaited(
        self, attempt: Callable[[float | None], Result], until: float | None = None
    ) -> Result:
        """Do what begins a transaction; again while its pooler has no server, for the patience.

        `attempt` has to raise nothing of what comes after its first statement. Its argument is
        how many seconds it may wait for a connection; None is the pool's timeout. Raises the last
        attempt's error.
        """
        seconds: float | None = None
        deadline: float | None = None
        refused: errors.ProtocolViolation | None = None
        waits = pauses()
        while True:
            try:
                return attempt(seconds)
            except NoConnection:
                if refused is None:
                    raise
                raise refused from None  # it had little time left, and says less
            except errors.ProtocolViolation as error:
                refused = error
                now = time.monotonic()
                if deadline is None:
                    deadline = now + self._known.patience_s
                    deadline = deadline if until is None else min(deadline, until)
                if not is_refusal(error) or now >= deadline:
                    raise
            sleep(min(next(waits), deadline - now))
            seconds = max(0.0, deadline - time.monotonic())

    def close(self, seconds: float) -> None:
        """Close all pools; connections in use are closed when they come back."""
        if not self.closed and not self.loop.has_ended:
            self.loop.require(closed=False)
        with self._opening:
            self.closed = True
            pools, self.pools = list(self.pools.values()), {}
        if self.loop.has_ended:
            return  # psycopg ends a connection that nothing refers to any more
        with ExitStack() as stack:  # all of them, also where one fails
            for pool in pools:
                stack.callback(pool.close, seconds)

    def _once(
        self,
        node: NodeName,
        work: Callable[[Bounded], Result],
        until: float | None,
        seconds: float | None,
    ) -> Result:
        """Do something with a connection, which goes back into its pool."""
        connection = self._take(node, seconds, until)
        try:
            return work(connection)
        finally:
            self._give_back(connection)

    def _begin(self, node: NodeName, statement: bytes, seconds: float | None) -> Bounded:
        connection = self._take(node, seconds, None)
        try:
            connection.wait(connections.done(connection, statement))
        except BaseException:
            self._give_back(connection)
            raise
        return connection

    def _take(self, node: NodeName, seconds: float | None, until: float | None) -> Bounded:
        """Take a connection out of its pool.

        One that the other side has ended goes back, and psycopg's pool opens another. Raises
        NoConnection, Closed, AnotherCluster.
        """
        self.loop.require(closed=self.closed)
        pool = self.pools.get(node) or self._pool(node)
        now = time.monotonic()
        ends = now + (self._settings.timeout if seconds is None else seconds)
        if until is not None:
            ends = min(ends, until)
            until += GRACE_S
        while True:
            try:
                connection = pool.getconn(ends - now)
            except PoolTimeout as error:
                raise NoConnection(node, str(error), pool.failed) from error
            except PoolClosed as error:
                raise Closed from error
            try:
                if connections.is_quiet(connection) or _answers(connection, ends):
                    connection.home, connection.until = pool, until
                    if not pool.same:
                        self._require_same(pool, connection)
                    return connection
            except BaseException:
                pool.putconn(connection)
                raise
            pool.putconn(connection)
            now = time.monotonic()

    def _require_same(self, pool: Pool, connection: Bounded) -> None:
        """See that the node of a pool is of this cluster, before it is first used.

        With another number of shards or rule of keys, rows would go into other shards.
        """
        cursor = psycopg.Cursor(connection, row_factory=tuple_row)
        try:
            cursor.execute(maps.READ, prepare=False)
        except psycopg.ProgrammingError:
            pool.same = True  # no node, or nothing for this role to read: its own calls tell
            return
        row = cursor.fetchone()
        reported = None if row is None else maps.of_row(row)
        if reported is not None:
            self._known.require_same(reported)
            pool.same = True

    def _give_back(self, connection: Bounded) -> None:
        """Put a connection into its pool again, rolled back."""
        try:
            connections.restore(connection)
            if connection.pgconn.transaction_status != TransactionStatus.IDLE:
                connections.prolong(connection)
                # Where it is broken or does not answer, the pool sees that, too.
                with suppress(psycopg.Error, TimeoutError):
                    connection.rollback()
        finally:
            connection.until = None
            connection.home.putconn(connection)

    def _pool(self, node: NodeName) -> Pool:
        """Give a node's pool, opened when it is first used."""
        with self._opening:
            if self.closed:
                raise Closed
            pool = self.pools.get(node)
            if pool is None:
                places = self._known.places
                pool = Pool(
                    places.conninfo(node),
                    name=f"shardctl-{node}",
                    open=False,
                    reconnect_failed=_try_again,
                    **self._settings.options(pooled=places.pooled(node)),
                )
                pool.open()
                self.pools[node] = pool
            return pool


def _try_again(pool: Any) -> None:
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


def _execute(
    statement: bytes, parameters: Parameters, until: float | None, connection: Bounded
) -> Answer:
    """Run one statement; at `until` the server ends it."""
    if until is not None:
        left_ms = max(1, math.ceil(min(until - time.monotonic(), _LONGEST_S) * 1000))
        begin = b"BEGIN; SET LOCAL statement_timeout TO %d" % left_ms
        connection.execute(begin, prepare=False)
    cursor = psycopg.Cursor(connection, row_factory=tuple_row)
    cursor.execute(statement, parameters)
    result = cursor.pgresult
    if result is None or not result.nfields:  # no rows can come, as of an UPDATE
        return Answer([], cursor.rowcount)
    types = tuple(map(result.ftype, range(result.nfields)))
    return Answer(cursor.fetchall(), cursor.rowcount, types)


def _cursor(statement: bytes, parameters: Parameters, connection: Bounded) -> Any:
    """Run statements as one message; give the last one's cursor."""
    cursor = connection.cursor()
    if not isinstance(cursor, psycopg.ClientCursor):
        cursor = psycopg.ClientCursor(connection)
    cursor.execute(statement, parameters)
    while cursor.nextset():
        pass
    return cursor
