"""The face for threads; `make docs` writes it from that for asyncio: do not edit."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Self

from shardctl.router import fence, plans, statements
from shardctl.router.threads import Connection, InThreads

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

    from shardctl.router.requests import Parameters, Row
    from shardctl.router.scatter import Scatter
    from shardctl.router.settings import NodeHealth, Stats
    from shardctl.router.statements import Names, Order, Where
    from shardctl.topology.keys import Key
    from shardctl.topology.model import NodeName, ShardId


class ShardedDatabase(InThreads):
    """A sharded database for applications with threads, which may share it.

    Use it in a `with`, or call `close`. A child of a process that forks has connections of
    its own. `source` is a topology (or its file), or the connection string of a node or of a
    pooler's alias: a string with `=` or `://` in it. `through` chooses between a topology's
    poolers and its nodes. `connect` has further keywords of libpq, such as `user`. `nodes` has a
    connection string for each node, for use without a topology or a pooler. `width` is how
    many nodes one call asks at once. `patience` is how many seconds a statement waits for a
    shard that is fenced and not yet on another node. Connections are opened when needed.
    """

    def open(self) -> Self:
        """Read the first map, where there is no topology; raises MapUnread.

        With a topology there is nothing to do.
        """
        self._run(self._begin())
        return self

    def close(self, timeout: float = 5.0) -> None:
        """Close all pools; connections in use are closed when they come back."""
        self._close(timeout)

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

        Raises psycopg's errors, NoConnection and NameRefused, as the other methods do.
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

        Raises ShardMoved where the shard moved during the transaction: nothing was written, and
        the transaction can be run again.
        """
        shard = self._known.shard_of(shard_key)
        node = self._known.owner(shard)
        try:
            with self._transaction(node, shard) as connection:
                # The same text means another shard's tables and types next time.
                connection.prepare_threshold = None
                connection.execute(statements.search_path(self._known.schema(shard)))
                yield connection
        except Exception as error:
            if not fence.met(error):
                raise
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
        Raises WritesUnseen, as `scatter` does, within a `shard()` that has changed one of them.
        """
        return self._run(
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
    ) -> Scattered:
        """Read rows of all shards, in one order, as they come.

        After `deadline` seconds what has not answered raises DeadlinePassed. With `partial`,
        nodes that do not answer are skipped instead, and their shards are `missing` in the
        result. Raises OrderUnsupported, too.
        """
        asked = self._scatter(fields, table, where, parameters, order_by, limit, deadline, partial)
        return Scattered(asked, self._hand_out(asked.plan()))

    def read_map(self) -> int:
        """Read the map again, and give its version; raises MapUnread, MapWentBack.

        Nothing needs to call it: the map is read when a shard has moved.
        """
        return self._run(self._reread())

    def check(self, timeout: float = 5.0) -> dict[NodeName, NodeHealth]:
        """Check every node that owns shards, through its pool."""
        return self._run(self._checks(timeout))

    def stats(self) -> Stats:
        """Return the router's counters and those of psycopg's pools."""
        return self._stats({node: pool.connections for node, pool in self._pools.items()})


class Scattered:
    """The rows of a scatter: iterate once, and `close` it (or use `with`) to end early."""

    def __init__(self, asked: Scatter, rows: Generator[Row, None, None]) -> None:
        self._asked = asked
        self._rows = rows

    @property
    def missing(self) -> Mapping[ShardId, str]:
        """Shards whose rows are missing, and why; complete when the last row has come."""
        return self._asked.missing

    def __iter__(self) -> Iterator[Row]:
        return self._rows

    def close(self) -> None:
        """Give back the connections that it holds."""
        self._rows.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
