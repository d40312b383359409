"""The face for asyncio."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload

from shardctl.errors import Misused
from shardctl.router import fence, plans
from shardctl.router.tasks import AsyncConnection, InTasks

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        AsyncIterator,
        Awaitable,
        Callable,
        Iterable,
        Mapping,
        Sequence,
    )

    from psycopg.rows import BaseRowFactory
    from typing_extensions import TypeVar as TypeVarWithDefault

    from shardctl.router.aggregates import Asking, Fields
    from shardctl.router.leased import AsyncLeased
    from shardctl.router.requests import Parameters, Row
    from shardctl.router.settings import NodeHealth, Stats
    from shardctl.router.statements import Names, OnConflict, Order, Where
    from shardctl.topology.handles import NodeName, ShardId
    from shardctl.topology.keys import Key

    Made = TypeVarWithDefault("Made", default=Row)
    Done = TypeVar("Done")
    Ordered = str | Order | Sequence[str | Order] | None

Each = TypeVar("Each")


class AsyncShardedDatabase(InTasks):
    """A sharded database for applications with asyncio; it belongs to one event loop.

    Use it in an `async with`, or call `close`. A child of a process that forks has connections of
    its own.

    `source` is a topology (or its file), or the connection string of a node or of a pooler's
    alias: a string with `=` or `://` in it. `through` chooses between a topology's poolers and
    its nodes. `connect` has further keywords of libpq, such as `user`. `nodes` has a connection
    string for each node, for use without a topology or a pooler. `pool` are the PoolSettings of
    each node's pool. `width` is how many nodes one call asks at once. `patience` is how many
    seconds a statement waits for a shard that is fenced and not yet on another node.
    `on_statement` is called with a StatementEvent at the end of each statement. Connections are
    opened when needed.

    Keys are integers, strings or UUIDs. Names of tables and fields are quoted, and values are
    never written into a statement. All methods raise psycopg's errors as they come, NoConnection
    if a node cannot be reached, and NameRefused.

    Example:
        async with AsyncShardedDatabase("topology.yaml") as db:
            photo = await db.insert("photos", 31341, {"user_id": 31341, "caption": "dusk"})
            rows = await db.select(["id", "caption"], "photos", 31341, "id = %s", [photo])

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
        order_by: Ordered = None,
        limit: int | None = None,
        *,
        row_factory: BaseRowFactory[Made] | None = None,
    ) -> list[Made]:
        """Read rows of a key's shard.

        `where` is SQL with `%s` or `%(name)s` for `parameters`. `order_by` is a field or a list
        of them, with a minus sign in front for descending order. Gives a list of tuples in the
        order of `fields`, or of what `row_factory` makes, such as psycopg's `class_row(Photo)`.
        A shard that has moved is read on its new node, and a connection that turns out to be
        lost is replaced, once.

        Example:
            rows = await db.select(["id", "caption"], "photos", 31341, "caption = %s", ["dusk"])

        """
        return await self._run(
            plans.select(
                self._known,
                fields,
                table,
                shard_key,
                where,
                parameters,
                order_by,
                limit,
                row_factory,
            )
        )

    async def insert(
        self,
        table: str,
        shard_key: Key,
        values: Mapping[str, Any],
        returning: Names | None = "id",
        *,
        row_factory: BaseRowFactory[Any] | None = None,
    ) -> Any:
        """Write a row into a key's shard.

        `values` has a value for each field. Gives the field that is `returning`; a row, if that
        is a list; None, if it is None. Raises NothingReturned if a trigger or a rule has left
        the row out.

        Example:
            photo = await db.insert("photos", 31341, {"user_id": 31341, "caption": "dusk"})

        """
        return await self._run(
            plans.insert(self._known, table, shard_key, values, returning, row_factory)
        )

    async def insert_many(
        self,
        table: str,
        rows: Iterable[tuple[Key, Mapping[str, Any]]],
        returning: Names | None = None,
        *,
        on_conflict: OnConflict | None = None,
        row_factory: BaseRowFactory[Any] | None = None,
    ) -> Any:
        """Write rows into the shards of their keys, on all nodes at once.

        `rows` are pairs of a key and values. Gives how many were written, or a list in the order
        of `rows` of what is `returning`, as of `insert`. `on_conflict` is an OnConflict.

        Rows of a node are one transaction (of at most 10,000 rows and 256 shards): all of them
        are written, or none. If their shards move meanwhile, or a connection is lost before
        COMMIT, they are written once, where they belong. Raises InsertedInPart if some rows were
        written and others were not, or if the answer to a COMMIT was lost; after any other error
        nothing was written. Without `returning` and `on_conflict` rows go by COPY, which reads
        values as text: a field of type bigint takes 3 and "3", and not 3.0.

        Example:
            likes = [(user, {"user_id": user, "photo_id": photo}) for user in users]
            await db.insert_many("likes", likes, on_conflict=OnConflict(["user_id", "photo_id"]))

        """
        from shardctl.router import loading  # noqa: PLC0415  # with its first use

        return await self._run(
            loading.insert_many(
                self._known, table, rows, returning, on_conflict, self._width, row_factory
            )
        )

    @overload
    async def update(
        self,
        table: str,
        shard_key: Key,
        values: Mapping[str, Any],
        where: Where,
        parameters: Parameters = None,
        returning: None = None,
    ) -> int: ...

    @overload
    async def update(
        self,
        table: str,
        shard_key: Key,
        values: Mapping[str, Any],
        where: Where,
        parameters: Parameters = None,
        returning: Names = ...,
        *,
        row_factory: BaseRowFactory[Any] | None = None,
    ) -> list[Any]: ...

    async def update(
        self,
        table: str,
        shard_key: Key,
        values: Mapping[str, Any],
        where: Where,
        parameters: Parameters = None,
        returning: Names | None = None,
        *,
        row_factory: BaseRowFactory[Any] | None = None,
    ) -> int | list[Any]:
        """Change rows of a key's shard.

        `values` has the new value of each field. Gives how many rows were changed. With
        `returning`, gives a list instead: of that field, or of rows if it is a list.

        Example:
            captions = await db.update(
                "photos", 31341, {"caption": "dusk"}, "id = %s", [photo], returning="caption"
            )

        """
        changed: int | list[Any] = await self._run(
            plans.update(
                self._known, table, shard_key, values, where, parameters, returning, row_factory
            )
        )
        return changed

    @overload
    async def delete(
        self,
        table: str,
        shard_key: Key,
        where: Where,
        parameters: Parameters = None,
        returning: None = None,
    ) -> int: ...

    @overload
    async def delete(
        self,
        table: str,
        shard_key: Key,
        where: Where,
        parameters: Parameters = None,
        returning: Names = ...,
        *,
        row_factory: BaseRowFactory[Any] | None = None,
    ) -> list[Any]: ...

    async def delete(
        self,
        table: str,
        shard_key: Key,
        where: Where,
        parameters: Parameters = None,
        returning: Names | None = None,
        *,
        row_factory: BaseRowFactory[Any] | None = None,
    ) -> int | list[Any]:
        """Remove rows of a key's shard.

        Gives how many rows were removed. With `returning`, gives a list instead: of that field,
        or of rows if it is a list.

        Example:
            images = await db.delete("photos", 31341, "id = %s", [photo], returning="image_url")

        """
        removed: int | list[Any] = await self._run(
            plans.delete(self._known, table, shard_key, where, parameters, returning, row_factory)
        )
        return removed

    @contextlib.asynccontextmanager
    async def shard(self, shard_key: Key) -> AsyncIterator[AsyncConnection]:
        """Give a connection in a transaction in which unqualified names are the shard's.

        It is a connection of psycopg's. The end of the block commits, or rolls back after an
        error, and gives it back. It is safe to use as PEP 249 says: `commit` and `rollback` end a
        transaction, the next statement begins another one in the same shard, and `close` gives
        the connection back, rolled back; nothing can be sent on it any more then.

        Raises ShardMoved where the shard moved during the transaction: nothing of it was written,
        and it can be run again. Raises CommitUnknown where the connection was lost in COMMIT.

        Example:
            async with db.shard(31341) as connection:
                await connection.execute("UPDATE photos SET caption = 'dusk'")

        """
        shard = self._known.shard_of(shard_key)
        with self._known.span("shard", None, (shard,)) as span:
            node = self._known.owner(shard)
            try:
                async with self._transaction(shard, span) as lease:
                    node = lease.node
                    yield lease
            except Exception as error:
                if not fence.met(error):
                    raise
                await self._run(plans.after_transaction(self._known, shard, node))
                raise
            if lease.hidden is not None:
                await self._run(plans.after_transaction(self._known, shard, node))

    async def connection(self, shard_key: Key) -> AsyncConnection:
        """Give a connection in a key's shard, as `shard` does, that you close yourself.

        For libraries that open and close connections by themselves. A transaction has begun.
        The fence's errors come as the server's: pass them to `settle`, close the connection, and
        take another one.

        Example:
            connection = await db.connection(31341)
            try:
                await connection.execute("UPDATE photos SET caption = 'dusk'")
                await connection.commit()
            finally:
                await connection.close()

        """
        return await self._connection(self._known.shard_of(shard_key))

    async def run(
        self,
        shard_key: Key,
        work: Callable[[AsyncConnection], Awaitable[Done]],
        attempts: int = 3,
    ) -> Done:
        """Run `work` in a transaction in a key's shard, and commit; give what it returns.

        `work` gets a connection as of `shard`, and may run several times: all `attempts` of them,
        if the shard was fenced or has moved, or if the connection was lost before COMMIT.
        Nothing of the earlier attempts was written. It is never tried again if the answer to
        COMMIT was lost (CommitUnknown), or after any error of its own. `work` must not commit.

        Raises ShardMoved if the last attempt met a move, and NotCommitted if `work` returned
        although a statement had failed.

        Example:
            async def like(connection):
                await connection.execute("INSERT INTO likes VALUES (%s, %s)", [user, photo])

            await db.run(user, like)

        """
        from shardctl.router import running  # noqa: PLC0415  # with its first use

        if attempts < 1:
            raise Misused(
                "no_attempts", f"run: {attempts} attempts", hint="pass attempts=1 or more"
            )
        shard = self._known.shard_of(shard_key)
        trying = running.Attempts(self._known, shard, attempts)
        with self._known.span("run", None, (shard,)) as span:
            while True:
                lease: AsyncLeased | None = None
                try:
                    async with self._transaction(shard, span, sealed=True) as lease:
                        result = await work(lease)
                except Exception as error:
                    if not await self._run(trying.after(error, lease)):
                        raise
                    span.count()
                else:
                    return result

    async def settle(
        self, error: BaseException, shard_key: Key, *, node: str | None = None
    ) -> bool:
        """Tell whether to try again after an error on a connection that is not the router's.

        If the error of any driver is the fence's, waits until the shard is served again and reads
        the map: then gives True, and `node_of(shard_of(key))` is where to try. Gives False if
        the error is the application's own, or the shard is still fenced after `patience`. Pass
        the `node` on which the statement ran, if you know it. The transaction was rolled back by
        the server. An error during COMMIT is never the fence's.

        Example:
            try:
                await work_on(engines[db.node_of(db.shard_of(user))])
            except DatabaseError as error:
                if not await db.settle(error, user):
                    raise
                await work_on(engines[db.node_of(db.shard_of(user))])

        """
        from shardctl.router import running  # noqa: PLC0415  # with its first use

        shard = self._known.shard_of(shard_key)
        return await self._run(running.settle(self._known, shard, error, node))

    async def fetch_many(
        self,
        fields: Names,
        table: str,
        wanted: Sequence[tuple[Key, Any]],
        id_field: str = "id",
        *,
        row_factory: BaseRowFactory[Made] | None = None,
    ) -> list[Made | None]:
        """Read the rows of pairs of key and id, with one statement a node, all nodes at once.

        They come in the order asked for, None where there is none. An id is unique in its shard.
        Raises IdsUnlike for ids of another type than the field's.

        Example:
            rows = await db.fetch_many(["caption"], "photos", [(user, photo), (friend, other)])

        """
        from shardctl.router import many  # noqa: PLC0415  # with its first use

        return await self._run(
            many.fetch_many(self._known, fields, table, wanted, id_field, self._width, row_factory)
        )

    async def select_many(
        self,
        fields: Names,
        table: str,
        keys: Iterable[Key],
        key_field: str,
        where: Where | None = None,
        parameters: Parameters = None,
        order_by: Ordered = None,
        limit: int | None = None,
        *,
        row_factory: BaseRowFactory[Made] | None = None,
    ) -> list[list[Made]]:
        """Read the rows of many keys, with one statement a node, all nodes at once.

        A key's rows are those of its shard in which `key_field` is the key. Gives a list of rows
        for each key, in the order of `keys`; order and limit are of each key's rows. Raises
        IdsUnlike for keys of another type than the field's.

        Example:
            feed = await db.select_many(
                ["id", "caption"], "photos", followees, "user_id", order_by="-id", limit=30
            )

        """
        from shardctl.router import many  # noqa: PLC0415  # with its first use

        return await self._run(
            many.select_many(
                self._known,
                fields,
                table,
                keys,
                key_field,
                where,
                parameters,
                order_by,
                limit,
                self._width,
                row_factory,
            )
        )

    def scatter(
        self,
        fields: Fields,
        table: str,
        where: Where | None = None,
        parameters: Parameters = None,
        order_by: Ordered = None,
        limit: int | None = None,
        *,
        deadline: float | None = None,
        partial: bool = False,
        row_factory: BaseRowFactory[Made] | None = None,
    ) -> AsyncScattered[Made]:
        """Read rows of all shards, in one order, as they come: for an `async for`.

        With aggregates among `fields` (Count, Sum, Min, Max, Avg), there is one row for each
        group of the other fields' values, over all shards. After `deadline` seconds what has not
        answered raises DeadlinePassed. With `partial`, nodes that do not answer are skipped
        instead, and their shards are `missing` in the result. Raises OrderUnsupported, too.

        Example:
            async for user, photos in db.scatter(["user_id", Count()], "photos"):
                print(user, photos)

        """
        asked = self._scatter(
            fields,
            table,
            where,
            parameters,
            order_by,
            limit,
            deadline,
            partial,
            row_factory,
        )
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


class AsyncScattered(Generic[Each]):
    """The rows of a scatter: iterate once, and `aclose` it (or use `async with`) to end early."""

    def __init__(self, asked: Asking, rows: AsyncGenerator[Any, None]) -> None:
        self._asked = asked
        self._rows = rows

    @property
    def missing(self) -> Mapping[ShardId, str]:
        """Shards whose rows are missing, and why; complete when the last row has come."""
        return self._asked.missing

    def __aiter__(self) -> AsyncIterator[Each]:
        return self._rows

    async def aclose(self) -> None:
        """Give back the connections that it holds."""
        await self._rows.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
