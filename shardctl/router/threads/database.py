"""A sharded database."""

# `make docs` writes this from router/tasks: do not edit.

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import psycopg
from psycopg import errors
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from shardctl.router import core, merging, statements
from shardctl.router.concurrency import Workers, myself, sleep
from shardctl.router.core import Routed
from shardctl.router.errors import (
    Closed,
    DeadlinePassed,
    NoConnection,
    WritesUnseen,
    id_given,
    keys_not_ids,
)
from shardctl.router.refusals import FENCED, Look, can_be_fence, pauses, reasons
from shardctl.router.settings import NodeHealth
from shardctl.router.threads.fence import Fence
from shardctl.router.threads.nodes import Nodes
from shardctl.state import map as maps
from shardctl.topology.model import ShardId

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from shardctl.router.settings import Stats
    from shardctl.router.statements import Answer, Names, Parameters, Row, Where
    from shardctl.topology.keys import Key
    from shardctl.topology.model import NodeName

    Compose = Callable[[Sequence[ShardId]], tuple[bytes, Parameters]]


class ShardedDatabase(Routed):
    """A sharded database for applications with threads, which may share it.

    Use it in a `with`, or call `close`. A child of a process that forks has connections of
    its own. `source` is a topology (or its file), or the connection string of a node or of a
    pooler's alias: a string with `=` or `://` in it. `through` chooses between a topology's
    poolers and its nodes. `connect` has further keywords of libpq, such as `user`. `nodes` has a
    connection string for each node, for use without a topology or a pooler. `patience` is how
    many seconds a statement waits for a shard that is fenced and not yet on another node.
    Connections are opened when needed.
    """

    def _set_up(self) -> None:
        self._workers = Workers()
        self._nodes = Nodes(self._known, self._settings)
        self._fence = Fence(self._known, self._nodes, self._workers)

    def open(self) -> Self:
        """Read the first map, where there is no topology; raises MapUnread.

        With a topology there is nothing to do.
        """
        self._fence.begin(self._source)
        return self

    def close(self, timeout: float = 5.0) -> None:
        """Close all pools; connections in use are closed when they come back."""
        self._workers.shutdown()
        self._nodes.close(timeout)

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
        order_by: str | Sequence[str] | None = None,
        limit: int | None = None,
    ) -> list[Row]:
        """Read rows of a key's shard.

        Raises psycopg's errors, NoConnection and NameRefused, as the other methods do.
        """
        shard = self._known.shard_of(shard_key)
        statement = statements.select(
            self._known.schemas[shard],
            table,
            statements.terms(fields),
            statements.condition(where, parameters),
            statements.orders(order_by),
            statements.number(limit),
        )
        return self._on_shard(shard, statement, parameters).rows

    def insert(
        self,
        table: str,
        shard_key: Key,
        values: Mapping[str, Any],
        returning: Names | None = "id",
    ) -> Any:
        """Write a row into a key's shard; give one field of it, or a row of those named.

        None where a trigger or a rule has left the row out.
        """
        return self._insert(self._known.shard_of(shard_key), table, values, returning)

    def insert_new(self, table: str, values: Mapping[str, Any], returning: Names = "id") -> Any:
        """Write a row whose id is its key, into a shard that is chosen evenly; give the id.

        `returning` is as of `insert`, and its first field is the id. Raises keys_not_ids without
        `shards: {key: id}` in the topology, and id_given.
        """
        if (rule := self._known.map.key_rule) != "id":
            raise keys_not_ids(rule)
        identity = statements.terms(returning)[0]
        if identity in values:
            raise id_given(identity)
        # From the system: the state of a generator of our own would be the same in forked children.
        shard = ShardId(secrets.randbelow(len(self._known.map.owners)))
        return self._insert(shard, table, values, returning)

    def update(
        self,
        table: str,
        shard_key: Key,
        values: Mapping[str, Any],
        where: Where,
        parameters: Parameters = None,
    ) -> int:
        """Change rows of a key's shard; give how many."""
        shard = self._known.shard_of(shard_key)
        schema, text = self._known.schemas[shard], statements.condition(where, parameters) or ""
        named = isinstance(parameters, Mapping)
        statement = statements.update(schema, table, tuple(values), text, named)
        given = statements.with_values(values, parameters)
        return self._on_shard(shard, statement, given).touched

    def delete(
        self, table: str, shard_key: Key, where: Where, parameters: Parameters = None
    ) -> int:
        """Remove rows of a key's shard; give how many."""
        shard = self._known.shard_of(shard_key)
        text = statements.condition(where, parameters) or ""
        statement = statements.delete(self._known.schemas[shard], table, text)
        return self._on_shard(shard, statement, parameters).touched

    @contextlib.contextmanager
    def shard(self, shard_key: Key) -> Iterator[psycopg.Connection[Any]]:
        """Give a connection in a transaction in which unqualified names are the shard's.

        Raises ShardMoved where the shard moved during the transaction: nothing was written, and
        the transaction can be run again.
        """
        shard = self._known.shard_of(shard_key)
        self._require_committed([shard])
        node = self._known.owner(shard)
        begin = statements.begin(self._known.schema(shard))
        try:
            with self._nodes.transaction(node, begin) as connection:
                with self._noted(myself(), shard, connection):
                    yield connection
        except psycopg.Rollback as error:  # as psycopg's own transactions do
            if error.transaction is not None:
                raise
        except Exception as error:
            if can_be_fence(error):
                self._fence.require_unmoved(node, shard)
            raise

    def scatter(
        self,
        fields: Names,
        table: str,
        where: Where | None = None,
        parameters: Parameters = None,
        order_by: str | Sequence[str] | None = None,
        *,
        limit: int,
        timeout: float | None = None,
    ) -> list[Row]:
        """Read at most `limit` rows of all shards, in one order: one statement a node.

        After `timeout` seconds what has not answered raises DeadlinePassed. Raises
        OrderUnsupported, and WritesUnseen within a `shard()` that has changed a table.
        """
        asked, named = core.gathering(fields, table, where, parameters, order_by, limit)
        schemas = self._known.schemas

        def compose(shards: Sequence[ShardId]) -> tuple[bytes, Parameters]:
            return statements.gather([schemas[shard] for shard in shards], asked), named

        answers = self._on_shards(self._known.every(), compose, timeout)
        return merging.merged(asked, answers)

    def read_map(self) -> int:
        """Read the map again, and give its version; raises MapUnread, MapWentBack.

        Nothing needs to call it: the map is read when a shard has moved.
        """
        self._fence.begin(self._source)
        self._fence.reread()
        return self._known.map.version

    def check(self, timeout: float = 5.0) -> dict[NodeName, NodeHealth]:
        """Check every node that owns shards, through its pool."""
        self._fence.begin(self._source)
        owning = self._known.owning()
        until = time.monotonic() + timeout
        outcomes = self._together([partial(self._check, node, until) for node in owning])
        return {
            node: NodeHealth(reasons([outcome])[0], 0.0, None)
            if isinstance(outcome, BaseException)
            else outcome
            for node, outcome in zip(owning, outcomes, strict=True)
        }

    def stats(self) -> Stats:
        """Return the router's counters and those of psycopg's pools."""
        return self._stats(self._nodes.pools)

    def _insert(
        self, shard: ShardId, table: str, values: Mapping[str, Any], returning: Names | None
    ) -> Any:
        back = () if returning is None else statements.terms(returning)
        schema = self._known.schemas[shard]
        statement = statements.insert(schema, table, tuple(values), back)
        answer = self._on_shard(shard, statement, tuple(values.values()))
        row = answer.rows[0] if answer.rows else None
        return row[0] if row and isinstance(returning, str) else row

    def _on_shard(self, shard: ShardId, statement: bytes, parameters: Parameters) -> Answer:
        """Run a statement on its shard's node; once more if the shard was missing there."""
        given = () if parameters is None else parameters
        self._require_committed([shard])
        node = self._known.owner(shard)
        try:
            return self._nodes.execute(node, statement, given)
        except FENCED:
            # The statement was refused, so that it may be sent again: nothing was written.
            if self._fence.look(node, [shard]) is Look.AWAY:
                raise
        answer = self._nodes.execute(self._known.owner(shard), statement, given)
        self._known.count_repeated()
        return answer

    def _on_shards(
        self, shards: Sequence[ShardId], compose: Compose, seconds: float | None
    ) -> list[Answer]:
        """Ask shards, one statement a node, all nodes at once.

        Raises WritesUnseen, DeadlinePassed, and what the first node to fail has raised.
        """
        self._require_seen(shards)
        self._require_committed(shards)
        until = None if seconds is None else time.monotonic() + seconds
        parts = self._parts(shards)
        calls = [partial(self._on_part, node, part, compose, until) for node, part in parts]
        outcomes = self._together(calls)
        late: list[ShardId] = []
        if until is not None and time.monotonic() >= until:
            ended = (TimeoutError, NoConnection, errors.QueryCanceled)
            for (_, part), outcome in zip(parts, outcomes, strict=True):
                late += part if isinstance(outcome, ended) else []
        if late:
            raise DeadlinePassed(late)
        answers: list[Answer] = []
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
            answers += outcome
        return answers

    def _on_part(
        self,
        node: NodeName,
        shards: Sequence[ShardId],
        compose: Compose,
        until: float | None,
        *,
        again: bool = True,
    ) -> list[Answer]:
        """Ask shards of one node; once more, and where they are then, if one was missing there."""
        statement, given = compose(shards)
        try:
            return [self._nodes.execute(node, statement, given, types=True, until=until)]
        except FENCED:
            if not again or self._fence.look(node, shards, until) is Look.AWAY:
                if again and until is not None and time.monotonic() >= until:
                    raise TimeoutError("no answer in time") from None
                raise
        found: list[Answer] = []
        for owner, part in self._known.by_node(shards).items():
            found += self._on_part(owner, part, compose, until, again=False)
        self._known.count_repeated()
        return found

    def _require_seen(self, asked: Collection[int]) -> None:
        """See that the caller's open transactions have changed none of the shards asked."""
        for shard, connection in list(self._opened.get(myself(), ())):
            if shard in asked and connection.info.transaction_status is TransactionStatus.INTRANS:
                cursor = psycopg.Cursor(connection, row_factory=tuple_row)
                cursor.execute(core.CHANGING)
                if cursor.rowcount:
                    raise WritesUnseen(shard)

    def _require_committed(self, shards: Sequence[ShardId]) -> None:
        """In a test fleet, see that no session has open changes of these; raises WritesUnseen.

        A session whose client does nothing for a second waits for this call: the same test has
        begun its transaction. That of another thread or task ends, or goes on, meanwhile.
        """
        if not self._known.in_tests:
            return
        for node, part in self._known.by_node(shards).items():
            lasting, waits = None, pauses()
            until = time.monotonic() + core.LASTING_S
            schemas = [self._known.schemas[shard] for shard in part]
            while True:
                found = set(self._nodes.execute(node, core.CHANGED, [schemas]).rows)
                lasting = found if lasting is None else lasting & found
                if not lasting:
                    break
                if time.monotonic() >= until:
                    schema, pid, name, _ = min(lasting)
                    raise WritesUnseen(ShardId(self._known.schemas.index(schema)), (pid, name))
                sleep(next(waits))

    def _together(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        if self._nodes.closed:
            raise Closed
        return self._workers.together(calls)

    def _check(self, node: NodeName, until: float) -> NodeHealth:
        """Ask a node for its map over a connection of its pool."""
        began = time.perf_counter()
        answer = self._nodes.execute(node, maps.READ, until=until)
        took_ms = (time.perf_counter() - began) * 1000
        reported = maps.of_row(answer.rows[0]) if answer.rows else None
        if reported is None:
            unfinished = "its map is incomplete: `shardctl init` has not finished"
            return NodeHealth(unfinished, took_ms, None)
        self._known.require_same(reported)
        other = None if reported.node == node else f"connected to node {reported.node} instead"
        return NodeHealth(other, took_ms, reported.map.version)
