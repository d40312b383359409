"""Statements on nodes, each over a connection of the node's pool, and the newest map.

A newer map is believed where each node that loses shards by it confirms that: by its own map, or
because their schemas are no longer there. Otherwise one node, taken over by somebody else, could
claim the shards of all others. A node that does not answer counts as confirming, too: it may be
gone for good, and nobody serves its shards meanwhile.
"""

from __future__ import annotations

import time
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg import errors
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row
from psycopg_pool import PoolClosed, PoolTimeout

from shardctl.router import connections, core, places, statements
from shardctl.router.concurrency import ALock, ALoop, a_first, a_held, asleep
from shardctl.router.connections import GRACE_S, AsyncBounded, AsyncPool
from shardctl.router.errors import (
    AnotherCluster,
    Closed,
    Look,
    MapUnread,
    NoConnection,
    NodeUnknown,
    pauses,
    reasons,
)
from shardctl.router.statements import Answer
from shardctl.state import map as maps

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence

    from shardctl.router.core import PoolSettings
    from shardctl.router.places import Known, Source
    from shardctl.router.statements import Parameters
    from shardctl.state.map import NodeMap
    from shardctl.topology.model import NodeName, ShardId

Result = TypeVar("Result")


class AsyncNodes:
    """The pools of all nodes, each opened when its node is first used, and where shards are.

    Times are in seconds, and `until` is on `time.monotonic`.
    """

    def __init__(self, known: Known, settings: PoolSettings) -> None:
        self.pools: dict[NodeName, AsyncPool] = {}
        self.closed = False
        self.loop = ALoop()
        self._known = known
        self._settings = settings
        self._opening = ALock()
        self._alone = ALock()
        """One question for the map serves all who wait for it."""

    async def execute(
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
        return await self.outwaited(partial(self._once, node, work, until), until)

    async def cursor(self, node: NodeName, statement: bytes, parameters: Parameters) -> Any:
        """Run statements as one message, a transaction of its own; give the last one's cursor."""
        work = partial(_cursor, statement, parameters)
        return await self.outwaited(partial(self._once, node, work, None))

    @asynccontextmanager
    async def transaction(self, node: NodeName, begin: bytes) -> AsyncIterator[AsyncBounded]:
        """Give a connection in a transaction, which ends with the block.

        Raises InFailedSqlTransaction where the block has caught the error of a statement.
        """
        connection = await self.outwaited(partial(self._begin, node, begin))
        try:
            connections.lend(connection)
            # The same text means another shard's tables and types next time.
            connection.prepare_threshold = None
            yield connection
            connections.restore(connection)
            status = connection.pgconn.transaction_status
            if status == TransactionStatus.INERROR:
                raise errors.InFailedSqlTransaction(core.CAUGHT)
            if status != TransactionStatus.IDLE:  # else what it was lent to has committed
                await connection.commit()
        finally:
            await self._give_back(connection)

    async def ask_node(self, node: NodeName, statement: bytes, until: float) -> Answer:
        """Run a short statement over a connection of the node's pool if one is idle, else as `ask`.

        A login takes several times as long, and none may be possible just then.
        """
        pool = self.pools.get(node)
        if pool is not None and pool.get_stats()["pool_available"]:
            with suppress(NoConnection):  # another call was quicker
                return await self._once(node, partial(_execute, statement, (), None), until, 0.0)
        return await self.ask(self._known.places.asking(node), statement)

    async def ask(self, conninfo: str, statement: bytes) -> Answer:
        """Run a statement on a connection of its own."""
        self.loop.require(closed=self.closed)
        connect = psycopg.AsyncConnection.connect
        async with await connect(conninfo, autocommit=True) as connection:
            cursor = await connection.execute(statement)
            return Answer(await cursor.fetchall(), cursor.rowcount)

    async def outwaited(
        self, attempt: Callable[[float | None], Awaitable[Result]], until: float | None = None
    ) -> Result:
        """Do what begins a transaction; again while its pooler has no server, for the patience.

        `attempt` has to raise nothing of what comes after its first statement. Its argument is
        how many seconds it may wait for a connection; None is the pool's timeout. Raises the last
        attempt's error.
        """
        waiting = core.Outwaiting(self._known.patience_s, until)
        while True:
            try:
                return await attempt(waiting.seconds())
            except (NoConnection, errors.ProtocolViolation) as error:
                pause = waiting.after(error)
            await asleep(pause)

    async def close(self, seconds: float) -> None:
        """Close all pools; connections in use are closed when they come back."""
        if not self.closed and not self.loop.has_ended:
            self.loop.require(closed=False)
        async with self._opening:
            self.closed = True
            pools, self.pools = list(self.pools.values()), {}
        if self.loop.has_ended:
            return  # psycopg ends a connection that nothing refers to any more
        async with AsyncExitStack() as stack:  # all of them, also where one fails
            for pool in pools:
                stack.push_async_callback(pool.close, seconds)

    async def _once(
        self,
        node: NodeName,
        work: Callable[[AsyncBounded], Awaitable[Result]],
        until: float | None,
        seconds: float | None,
    ) -> Result:
        """Do something with a connection, which goes back into its pool."""
        connection = await self._take(node, seconds, until)
        try:
            return await work(connection)
        finally:
            await self._give_back(connection)

    async def _begin(self, node: NodeName, statement: bytes, seconds: float | None) -> AsyncBounded:
        connection = await self._take(node, seconds, None)
        try:
            await connection.wait(connections.done(connection, statement))
        except BaseException:
            await self._give_back(connection)
            raise
        return connection

    async def _take(
        self, node: NodeName, seconds: float | None, until: float | None
    ) -> AsyncBounded:
        """Take a connection out of its pool.

        One that the other side has ended goes back, and psycopg's pool opens another. Raises
        NoConnection, Closed, AnotherLoop, AnotherCluster.
        """
        self.loop.require(closed=self.closed)
        pool = self.pools.get(node) or await self._pool(node)
        now = time.monotonic()
        ends = now + (self._settings.timeout if seconds is None else seconds)
        if until is not None:
            ends = min(ends, until)
            until += GRACE_S
        while True:
            try:
                connection = await pool.getconn(ends - now)
            except PoolTimeout as error:
                raise NoConnection(node, str(error), pool.failed) from error
            except PoolClosed as error:
                raise Closed from error
            try:
                if connections.is_quiet(connection) or await _answers(connection, ends):
                    connection.home, connection.until = pool, until
                    if not pool.same:
                        await self._require_same(pool, connection)
                    return connection
            except BaseException:
                await pool.putconn(connection)
                raise
            await pool.putconn(connection)
            now = time.monotonic()

    async def _require_same(self, pool: AsyncPool, connection: AsyncBounded) -> None:
        """See that the node of a pool is of this cluster, before it is first used.

        With another number of shards or rule of keys, rows would go into other shards.
        """
        try:
            answer = await _execute(maps.READ, (), None, connection)
        except psycopg.ProgrammingError:
            pool.same = True  # no node, or nothing for this role to read: its own calls tell
            return
        if (reported := core.reported(answer)) is not None:
            self._known.require_same(reported)
            pool.same = True

    async def _give_back(self, connection: AsyncBounded) -> None:
        """Put a connection into its pool again, rolled back."""
        try:
            connections.restore(connection)
            if connection.pgconn.transaction_status != TransactionStatus.IDLE:
                connections.prolong(connection)
                # Where it is broken or does not answer, the pool sees that, too.
                with suppress(psycopg.Error, TimeoutError):
                    await connection.rollback()
        finally:
            connection.until = None
            await connection.home.putconn(connection)

    async def _pool(self, node: NodeName) -> AsyncPool:
        """Give a node's pool, opened when it is first used."""
        async with self._opening:
            if self.closed:
                raise Closed
            pool = self.pools.get(node)
            if pool is None:
                known = self._known.places
                pool = AsyncPool(
                    known.conninfo(node),
                    name=f"shardctl-{node}",
                    open=False,
                    reconnect_failed=_try_again,
                    **self._settings.options(pooled=known.pooled(node)),
                )
                await pool.open()
                self.pools[node] = pool
            return pool

    async def begin(self, source: Source | None) -> None:
        """Read the first map, unless that was done; raises MapUnread, and psycopg's errors."""
        if self._known.found is not None or source is None:
            return
        async with self._alone:
            if self._known.found is not None:
                return
            conninfo = places.asked(source.keywords)
            try:
                answer = await self.outwaited(lambda _: self.ask(conninfo, maps.READ))
            except psycopg.Error as error:
                raise MapUnread(reasons([error])) from error
            if (reported := core.reported(answer)) is None:
                raise MapUnread(reasons([reported]))
            self._known.begin(reported.map, places.of_source(source, reported))

    async def look(
        self, node: NodeName, shards: Collection[ShardId], limit: float | None = None
    ) -> Look:
        """Find out where shards are that a statement on `node` did not find.

        While a schema is fenced and no map names its new node, a move is at its cutover: the map
        is read again, and the node asked again (the cutover may be undone), for as long as the
        router's patience, and until `limit` at the most.
        """
        known = self._known
        began = time.monotonic()
        deadline = began + known.patience_s
        deadline = deadline if limit is None else min(deadline, limit)
        here = known.still(node, shards)  # another caller may have read the map in between
        away = await self._fenced(node, here, limit)
        if not away:
            return Look.STANDS if len(here) == len(shards) else Look.SETTLED
        waits = pauses()
        while True:
            came = time.monotonic()
            async with a_held(self._alone, limit) as alone:
                if alone and known.asked_at <= came - core.FRESH_S and known.still(node, away):
                    await self._newest(node, away, came - began, limit)
            away = await self._fenced(node, known.still(node, away), limit)
            if not away:
                return Look.SETTLED
            left = deadline - time.monotonic()
            if left <= 0:
                return Look.AWAY
            await asleep(min(next(waits), left))

    async def reread(self) -> None:
        """Read the map again; raises MapUnread where no node returns it.

        Raises MapWentBack where the newest map of all nodes is older than the known one.
        """
        outcomes = await self._ask(self._known.owning(), core.given_up(None), None)
        self._known.require_no_older(outcomes)

    async def _fenced(
        self, node: NodeName, shards: Collection[ShardId], limit: float | None
    ) -> list[ShardId]:
        """Give the shards whose schemas are missing or closed on a node; all, without an answer."""
        if not shards:
            return []
        schemas = {self._known.schemas[shard]: shard for shard in shards}
        given, until = [list(schemas)], core.given_up(limit)
        try:
            answer = await self.execute(node, core.STANDING, given, until=until, short=True)
        except (psycopg.OperationalError, NoConnection, TimeoutError):
            # It may be gone since the shards have moved; then a map names their node.
            return list(shards)
        standing = {schema for (schema,) in answer.rows}
        return [shard for schema, shard in schemas.items() if schema not in standing]

    async def _newest(
        self, node: NodeName, shards: Collection[ShardId], waited: float, limit: float | None
    ) -> None:
        """Read the map for a caller that has `waited` so many seconds for shards of `node`."""
        known = self._known
        known.asked_at = time.monotonic()
        version = known.map.version
        moved = partial(known.has_moved, node, shards)
        await self._ask(known.owning(), core.given_up(limit), limit, moved)
        # The target owned nothing until now. It is asked last: where no server listens yet, a
        # pooler would remember the failed login, and make clients wait. One that does not answer
        # at most doubles a caller's wait.
        if known.map.version == version and (others := known.others()):
            until = min(core.given_up(limit), time.monotonic() + max(waited, core.SPARE_S))
            await self._ask(others, until, limit, moved)

    async def _ask(
        self,
        nodes: Sequence[NodeName],
        until: float,
        limit: float | None,
        moved: Callable[[object], bool] | None = None,
    ) -> list[Any]:
        """Ask nodes for the map, all at once, until one has `moved`; keep the newest believed."""
        calls: list[Callable[..., Awaitable[Any]]]
        calls = [partial(self._of_node, node) for node in nodes]
        if moved is None:  # what is asked again anyway need not outwait a pooler's refusal
            calls = [partial(self.outwaited, call, until) for call in calls]
        outcomes = await a_first(calls, moved or (lambda _: False), until)
        for one in outcomes:
            if isinstance(one, AnotherCluster):
                raise one
        await self._believe([one for one in outcomes if isinstance(one, maps.NodeMap)], limit)
        return outcomes

    async def _believe(self, answers: Sequence[NodeMap], limit: float | None) -> None:
        """Keep the newest map that is confirmed by the nodes that lose shards by it."""
        for one, losing in self._known.newer(answers):
            confirmed = losing is not None
            for node, shards in (losing or {}).items():
                confirmed = confirmed and await self._has_lost(node, shards, limit)
            if confirmed:
                self._known.adopt(one)
                return
            self._known.refused.add(one.node)

    async def _has_lost(
        self, node: NodeName, shards: Collection[ShardId], limit: float | None
    ) -> bool:
        """Return whether a node has these shards no more, as far as it can be asked."""
        try:
            gone = await self._fenced(node, shards, limit)
        except NodeUnknown:
            return True
        return len(gone) == len(shards)

    async def _of_node(self, node: NodeName, _: float | None = None) -> NodeMap | None:
        """Ask a node; None without an answer, or if it is a clone, which has its source's name."""
        reported = core.reported(await self.ask_node(node, maps.READ, core.given_up(None)))
        if reported is None or reported.node != node:
            return None
        self._known.require_same(reported)
        return reported


async def _try_again(pool: Any) -> None:
    """Let a pool that has given up an attempt to connect begin another, if a call waits."""
    stats, least, most = pool.get_stats(), pool.min_size, pool.max_size
    if stats["requests_waiting"] and stats["pool_size"] < most:
        await pool.resize(least + 1, max(least + 1, most))  # which opens one more
        await pool.resize(least, most)


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


async def _execute(
    statement: bytes, parameters: Parameters, until: float | None, connection: AsyncBounded
) -> Answer:
    """Run one statement; at `until` the server ends it."""
    if until is not None:
        await connection.wait(connections.done(connection, statements.begin_until(until)))
    cursor = psycopg.AsyncCursor(connection, row_factory=tuple_row)
    await cursor.execute(statement, parameters)
    result = cursor.pgresult
    if result is None or not result.nfields:  # no rows can come, as of an UPDATE
        return Answer([], cursor.rowcount)
    types = tuple(map(result.ftype, range(result.nfields)))
    return Answer(await cursor.fetchall(), cursor.rowcount, types)


async def _cursor(statement: bytes, parameters: Parameters, connection: AsyncBounded) -> Any:
    """Run statements as one message; give the last one's cursor."""
    cursor = connection.cursor()
    if not isinstance(cursor, psycopg.AsyncClientCursor):
        cursor = psycopg.AsyncClientCursor(connection)
    await cursor.execute(statement, parameters)
    while cursor.nextset():
        pass
    return cursor
