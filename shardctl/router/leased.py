"""Connections in a shard that applications hold: as PEP 249 says, on a pool's connections.

Each is an object of its own on a connection of the pool, so that one that was given back, and
cursors made of it, reach no server any more, whichever client uses the pool's connection next.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol
from weakref import ref

import psycopg
from psycopg import BaseConnection, pq
from psycopg.adapt import AdaptersMap
from psycopg.rows import tuple_row

from shardctl.router.bounded import AsyncBounded, Bounded, is_quiet
from shardctl.router.errors import CommitUnknown, NotCommitted
from shardctl.router.refusals import is_definite

if TYPE_CHECKING:
    from psycopg.abc import PQGen
    from psycopg.pq.abc import PGresult

    from shardctl.router.rows import Factory
    from shardctl.topology.handles import NodeName, ShardId

_COMMIT = b"COMMIT"


class Lent(Protocol):
    """What gives the pool's connection back."""

    def release(self) -> Any:
        """Give it back, rolled back."""


class _Lease(BaseConnection[Any]):
    """What both faces' connections have in common; to be initialised by `lend`."""

    shard: ShardId
    node: NodeName
    lent: Lent
    returned = False
    """Whether it was closed: the pool's connection may serve another client now."""
    lost = False
    """Whether the connection was broken when it was given back."""
    sealed = False
    """Whether the transaction is ended by the router alone, as in `run`."""
    restarted = False
    """Whether another transaction was begun after the first."""
    failed: BaseException | None = None
    """The last error of a statement."""
    hidden: BaseException | None = None
    """An error that can be the fence's, which the application caught before it committed."""
    _path = b""

    @property
    def closed(self) -> bool:
        """Whether it was closed, or its connection broke off."""
        return self.returned or super().closed

    @property
    def in_failed_transaction(self) -> bool:
        """Whether a statement failed, and COMMIT would roll back without an error."""
        return self.pgconn.transaction_status == pq.TransactionStatus.INERROR

    def end(self, pooled: BaseConnection[Any]) -> None:
        """Let nothing more be sent on it: the pool's connection is given back."""
        self.lost = self.pgconn.status == pq.ConnStatus.BAD
        self.returned = True
        self.failed = None
        _listen(pooled)

    def require_open(self) -> None:
        """Refuse what was given back; raises psycopg's OperationalError, as for a closed one."""
        if self.returned:
            raise psycopg.OperationalError("the connection is closed")

    def require_whole(self) -> None:
        """Refuse to commit what the server would roll back; raises NotCommitted."""
        if self.returned:
            raise NotCommitted(self.shard, self.node, "its work closed the connection")
        if self.in_failed_transaction:
            reason = "its work returned after a statement had failed"
            raise NotCommitted(self.shard, self.node, reason) from self.failed

    def _check_connection_ok(self) -> None:
        self.require_open()
        super()._check_connection_ok()

    def _set_autocommit_gen(self, value: bool) -> PQGen[None]:
        if value:
            raise psycopg.NotSupportedError(
                "autocommit: names are those of the shard in a transaction only"
            )
        yield from super()._set_autocommit_gen(value)

    def _exec_command(
        self, command: Any, result_format: pq.Format = pq.Format.TEXT
    ) -> PQGen[PGresult | None]:
        """Do what psycopg does by itself; a new transaction gets the shard's names."""
        if command == _COMMIT and not is_quiet(self):
            # A connection that has ended already is noticed before COMMIT, whose end is known then.
            yield from super()._exec_command(b"SELECT")
        sent = command == _COMMIT and self.pgconn.status == pq.ConnStatus.OK
        try:
            result = yield from super()._exec_command(command, result_format)
        except psycopg.Error as error:
            if sent and not is_definite(error):
                raise CommitUnknown((self.shard,), self.node) from error
            raise
        if command and command is self._begin_statement:
            self.restarted = True
            yield from super()._exec_command(self._path)
        return result

    def _commit_gen(self) -> PQGen[None]:
        self._require_unsealed()
        yield from super()._commit_gen()

    def _rollback_gen(self) -> PQGen[None]:
        self._require_unsealed()
        yield from super()._rollback_gen()

    def _require_unsealed(self) -> None:
        if self.sealed:
            raise psycopg.ProgrammingError("run() itself ends the transaction when its work ends")


class Leased(_Lease, Bounded):
    """A connection of psycopg's in a shard; `close` gives it back to the pool, rolled back."""

    def wait(self, gen: PQGen[Any], *given: Any, **named: Any) -> Any:
        """Run psycopg's generator; raises OperationalError where the connection was closed."""
        self.require_open()
        try:
            return super().wait(gen, *given, **named)
        except psycopg.Error as error:
            self.failed = error
            raise

    def close(self) -> None:
        """Give the connection back, rolled back; a second time changes nothing."""
        self.lent.release()


class AsyncLeased(_Lease, AsyncBounded):
    """The same for asyncio."""

    async def wait(self, gen: PQGen[Any], *given: Any, **named: Any) -> Any:
        """Run psycopg's generator; raises OperationalError where the connection was closed."""
        self.require_open()
        try:
            return await super().wait(gen, *given, **named)
        except psycopg.Error as error:
            self.failed = error
            raise

    async def close(self) -> None:
        """Give the connection back, rolled back; a second time changes nothing."""
        await self.lent.release()


def lend(
    lease: Leased | AsyncLeased,
    pooled: Bounded | AsyncBounded,
    lent: Lent,
    shard: ShardId,
    node: NodeName,
    path: bytes,
    factory: Factory | None,
) -> None:
    """Give a lease what its pool's connection was configured with, and its shard."""
    lease.lent, lease.shard, lease.node, lease._path = lent, shard, node, path  # noqa: SLF001  # a friend
    lease.lock = pooled.lock
    lease.row_factory = factory or tuple_row
    # psycopg has no public way to share or copy these.
    if pooled._adapters:  # noqa: SLF001
        lease._adapters = AdaptersMap(pooled._adapters)  # noqa: SLF001
    lease._prepared = pooled._prepared  # noqa: SLF001
    lease._notice_handlers = list(pooled._notice_handlers)  # noqa: SLF001
    lease._notify_handlers = list(pooled._notify_handlers)  # noqa: SLF001
    # The same text means another shard's tables and types next time.
    lease.prepare_threshold = None


def _listen(connection: BaseConnection[Any]) -> None:
    """Let a connection hear the server's notices again, as psycopg sets it up."""
    heard = ref(connection)
    connection.pgconn.notice_handler = partial(BaseConnection._notice_handler, heard)  # noqa: SLF001
    connection.pgconn.notify_handler = partial(BaseConnection._notify_handler, heard)  # noqa: SLF001
