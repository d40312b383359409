"""The face for asyncio."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Self

from shardctl.router import fence, plans, statements
from shardctl.router.tasks import AsyncConnection, InTasks

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence

    from shardctl.router.requests import Parameters, Row
    from shardctl.router.scatter import Scatter
    from shardctl.router.settings import NodeHealth, Stats
    from shardctl.router.statements import Names, Order, Where
    from shardctl.topology.keys import Key
    from shardctl.topology.model import NodeName, ShardId


class AsyncShardedDatabase(InTasks):
    """A sharded database for applications with asyncio; it belongs to one event loop.

    Use it in an `async with`, or call `close`. A child of a process that forks has connections of
    its own. `source` is a topology (or its file), or the connection string of a node or of a
    pooler's alias: a string with `=` or `://` in it. `through` chooses between a topology's
    poolers and its nodes. `connect` has further keywords of libpq, such as `user`. `nodes` has a
    connection string for each node, for use without a topology or a pooler. `width` is how
    many nodes one call asks at once. `patience` is how many seconds a statement waits for a
    shard that is fenced and not yet on another node. Connections are opened when needed.
    """

    async def open(self) -> Self:
        """Read the first map, where there is no topology; raises MapUnread.

        With a topology there is nothing to do.
        """
        await self._run(self._begin())
        return self

    async def close(self, timeout: float = 5.0) -> None:  # noqa: ASYNC109  # the pool's own
        """Close all pools; connections in use are closed when they come back.

        Raises AnotherLoop, unless the loop that it belongs to is closed.
        """
        await self._close(timeout)

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def select(
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

        Raises psycopg's errors, NoConnection and NameRefused, as the other methods do.
        """
        return await self._run(
            plans.select(self._known, fields, table, shard_key, where, parameters, order_by, limit)
        )

    async def insert(
        self,
        table: str,
        shard_key: Key,
        values: Mapping[str, Any],
        returning: Names | None = "id",
    ) -> Any:
        """Write a row into a key's shard; give one field of it, or a row of those named."""
        return await self._run(plans.insert(self._known, table, shard_key, values, returning))

    async def update(
        self,
        table: str,
        shard_key: Key,
        values: Mapping[str, Any],
        where: Where,
        parameters: Parameters = None,
    ) -> int:
        """Change rows of a key's shard; give how many."""
        return await self._run(
            plans.update(self._known, table, shard_key, values, where, parameters)
        )

    async def delete(
        self, table: str, shard_key: Key, where: Where, parameters: Parameters = None
    ) -> int:
        """Remove rows of a key's shard; give how many."""
        return await self._run(plans.delete(self._known, table, shard_key, where, parameters))

    @contextlib.asynccontextmanager
    async def shard(self, shard_key: Key) -> AsyncIterator[AsyncConnection]:
        """Give a connection in a transaction in which unqualified names are the shard's.

        Raises ShardMoved where the shard moved during the transaction: nothing was written, and
        the transaction can be run again.
        """
        shard = self._known.shard_of(shard_key)
        node = self._known.owner(shard)
        try:
            async with self._transaction(node, shard) as connection:
                # The same text means another shard's tables and types next time.
                connection.prepare_threshold = None
                await connection.execute(statements.search_path(self._known.schema(shard)))
                yield connection
        except Exception as error:
            if not fence.met(error):
                raise
            await self._run(plans.after_transaction(self._known, shard, node))
            raise

    async def fetch_many(
        self,
        fields: Names,
        table: str,
        wanted: Sequence[tuple[Key, Any]],
        id_field: str = "id",
    ) -> list[Row | None]:
        """Read the rows of pairs of key and id, with one statement a node, all nodes at once.

        They come in the order asked for, None where there is none. An id is unique in its shard.
        Raises WritesUnseen, as `scatter` does, within a `shard()` that has changed one of them.
        """
        return await self._run(
            plans.fetch_many(
                self._known, fields, table, wanted, id_field, self._width, self._open_here()
            )
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
    ) -> AsyncScattered:
        """Read rows of all shards, in one order, as they come: for an `async for`.

        After `deadline` seconds what has not answered raises DeadlinePassed. With `partial`,
        nodes that do not answer are skipped instead, and their shards are `missing` in the
        result. Raises OrderUnsupported, too.
        """
        asked = self._scatter(fields, table, where, parameters, order_by, limit, deadline, partial)
        return AsyncScattered(asked, self._hand_out(asked.plan()))

    async def read_map(self) -> int:
        """Read the map again, and give its version; raises MapUnread, MapWentBack.

        Nothing needs to call it: the map is read when a shard has moved.
        """
        return await self._run(self._reread())

    async def check(self, timeout: float = 5.0) -> dict[NodeName, NodeHealth]:  # noqa: ASYNC109  # same
        """Check every node that owns shards, through its pool."""
        return await self._run(self._checks(timeout))

    def stats(self) -> Stats:
        """Return the router's counters and those of psycopg's pools."""
        return self._stats({node: pool.connections for node, pool in self._pools.items()})


class AsyncScattered:
    """The rows of a scatter: iterate once, and `aclose` it (or use `async with`) to end early."""

    def __init__(self, asked: Scatter, rows: AsyncGenerator[Row, None]) -> None:
        self._asked = asked
        self._rows = rows

    @property
    def missing(self) -> Mapping[ShardId, str]:
        """Shards whose rows are missing, and why; complete when the last row has come."""
        return self._asked.missing

    def __aiter__(self) -> AsyncIterator[Row]:
        return self._rows

    async def aclose(self) -> None:
        """Give back the connections that it holds."""
        await self._rows.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
