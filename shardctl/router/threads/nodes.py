"""Statements on nodes, each over a connection of the node's pool, and the newest map.

A newer map is believed where each node that loses shards by it confirms that: by its own map, or
because their schemas are no longer there. Otherwise one node, taken over by somebody else, could
claim the shards of all others. A node that does not answer counts as confirming, too: it may be
gone for good, and nobody serves its shards meanwhile.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg import errors
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row
from psycopg_pool import PoolClosed, PoolTimeout

from shardctl.router import connections, core, places, statements
from shardctl.router.concurrency import Lock, Loop, first, held, sleep
from shardctl.router.connections import GRACE_S, Bounded, Pool
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
    from collections.abc import Callable, Collection, Iterator, Sequence

    from shardctl.router.core import PoolSettings
    from shardctl.router.places import Known, Source
    from shardctl.router.statements import Parameters
    from shardctl.state.map import NodeMap
    from shardctl.topology.model import NodeName, ShardId

Result = TypeVar("Result")


class Nodes:
    """The pools of all nodes, each opened when its node is first used, and where shards are.

    Times are in seconds, and `until` is on `time.monotonic`.
    """

    def __init__(self, known: Known, settings: PoolSettings) -> None:
        self.pools: dict[NodeName, Pool] = {}
        self.closed = False
        self.loop = Loop()
        self._known = known
        self._settings = settings
        self._opening = Lock()
        self._alone = Lock()
        """One question for the map serves all who wait for it."""

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
                raise errors.InFailedSqlTransaction(core.CAUGHT)
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
        waiting = core.Outwaiting(self._known.patience_s, until)
        while True:
            try:
                return attempt(waiting.seconds())
            except (NoConnection, errors.ProtocolViolation) as error:
                pause = waiting.after(error)
            sleep(pause)

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
        try:
            answer = _execute(maps.READ, (), None, connection)
        except psycopg.ProgrammingError:
            pool.same = True  # no node, or nothing for this role to read: its own calls tell
            return
        if (reported := core.reported(answer)) is not None:
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
                known = self._known.places
                pool = Pool(
                    known.conninfo(node),
                    name=f"shardctl-{node}",
                    open=False,
                    reconnect_failed=_try_again,
                    **self._settings.options(pooled=known.pooled(node)),
                )
                pool.open()
                self.pools[node] = pool
            return pool

    def begin(self, source: Source | None) -> None:
        """Read the first map, unless that was done; raises MapUnread, and psycopg's errors."""
        if self._known.found is not None or source is None:
            return
        with self._alone:
            if self._known.found is not None:
                return
            conninfo = places.asked(source.keywords)
            try:
                answer = self.outwaited(lambda _: self.ask(conninfo, maps.READ))
            except psycopg.Error as error:
                raise MapUnread(reasons([error])) from error
            if (reported := core.reported(answer)) is None:
                raise MapUnread(reasons([reported]))
            self._known.begin(reported.map, places.of_source(source, reported))

    def look(self, node: NodeName, shards: Collection[ShardId], limit: float | None = None) -> Look:
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
        away = self._fenced(node, here, limit)
        if not away:
            return Look.STANDS if len(here) == len(shards) else Look.SETTLED
        waits = pauses()
        while True:
            came = time.monotonic()
            with held(self._alone, limit) as alone:
                if alone and known.asked_at <= came - core.FRESH_S and known.still(node, away):
                    self._newest(node, away, came - began, limit)
            away = self._fenced(node, known.still(node, away), limit)
            if not away:
                return Look.SETTLED
            left = deadline - time.monotonic()
            if left <= 0:
                return Look.AWAY
            sleep(min(next(waits), left))

    def reread(self) -> None:
        """Read the map again; raises MapUnread where no node returns it.

        Raises MapWentBack where the newest map of all nodes is older than the known one.
        """
        outcomes = self._ask(self._known.owning(), core.given_up(None), None)
        self._known.require_no_older(outcomes)

    def _fenced(
        self, node: NodeName, shards: Collection[ShardId], limit: float | None
    ) -> list[ShardId]:
        """Give the shards whose schemas are missing or closed on a node; all, without an answer."""
        if not shards:
            return []
        schemas = {self._known.schemas[shard]: shard for shard in shards}
        given, until = [list(schemas)], core.given_up(limit)
        try:
            answer = self.execute(node, core.STANDING, given, until=until, short=True)
        except (psycopg.OperationalError, NoConnection, TimeoutError):
            # It may be gone since the shards have moved; then a map names their node.
            return list(shards)
        standing = {schema for (schema,) in answer.rows}
        return [shard for schema, shard in schemas.items() if schema not in standing]

    def _newest(
        self, node: NodeName, shards: Collection[ShardId], waited: float, limit: float | None
    ) -> None:
        """Read the map for a caller that has `waited` so many seconds for shards of `node`."""
        known = self._known
        known.asked_at = time.monotonic()
        version = known.map.version
        moved = partial(known.has_moved, node, shards)
        self._ask(known.owning(), core.given_up(limit), limit, moved)
        # The target owned nothing until now. It is asked last: where no server listens yet, a
        # pooler would remember the failed login, and make clients wait. One that does not answer
        # at most doubles a caller's wait.
        if known.map.version == version and (others := known.others()):
            until = min(core.given_up(limit), time.monotonic() + max(waited, core.SPARE_S))
            self._ask(others, until, limit, moved)

    def _ask(
        self,
        nodes: Sequence[NodeName],
        until: float,
        limit: float | None,
        moved: Callable[[object], bool] | None = None,
    ) -> list[Any]:
        """Ask nodes for the map, all at once, until one has `moved`; keep the newest believed."""
        calls: list[Callable[..., Any]]
        calls = [partial(self._of_node, node) for node in nodes]
        if moved is None:  # what is asked again anyway need not outwait a pooler's refusal
            calls = [partial(self.outwaited, call, until) for call in calls]
        outcomes = first(calls, moved or (lambda _: False), until)
        for one in outcomes:
            if isinstance(one, AnotherCluster):
                raise one
        self._believe([one for one in outcomes if isinstance(one, maps.NodeMap)], limit)
        return outcomes

    def _believe(self, answers: Sequence[NodeMap], limit: float | None) -> None:
        """Keep the newest map that is confirmed by the nodes that lose shards by it."""
        for one, losing in self._known.newer(answers):
            confirmed = losing is not None
            for node, shards in (losing or {}).items():
                confirmed = confirmed and self._has_lost(node, shards, limit)
            if confirmed:
                self._known.adopt(one)
                return
            self._known.refused.add(one.node)

    def _has_lost(self, node: NodeName, shards: Collection[ShardId], limit: float | None) -> bool:
        """Return whether a node has these shards no more, as far as it can be asked."""
        try:
            gone = self._fenced(node, shards, limit)
        except NodeUnknown:
            return True
        return len(gone) == len(shards)

    def _of_node(self, node: NodeName, _: float | None = None) -> NodeMap | None:
        """Ask a node; None without an answer, or if it is a clone, which has its source's name."""
        reported = core.reported(self.ask_node(node, maps.READ, core.given_up(None)))
        if reported is None or reported.node != node:
            return None
        self._known.require_same(reported)
        return reported


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
        connection.wait(connections.done(connection, statements.begin_until(until)))
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
