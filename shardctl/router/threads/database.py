"""A sharded database, and its calls of many shards."""

# `make docs` writes this from router/tasks: do not edit.

from __future__ import annotations

import time
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import psycopg
from psycopg import errors
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from shardctl.router import core, merging, statements
from shardctl.router.concurrency import myself
from shardctl.router.core import NodeHealth
from shardctl.router.errors import (
    FENCED,
    Closed,
    DeadlinePassed,
    Look,
    NoConnection,
    WritesUnseen,
    reasons,
)
from shardctl.router.statements import Answer
from shardctl.router.threads.one_shard import OneShard
from shardctl.state import map as maps
from shardctl.topology.model import ShardId

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable, Collection, Mapping, Sequence

    from shardctl.router.core import Stats
    from shardctl.router.statements import Fields, Names, Parameters, Row, Where
    from shardctl.topology.keys import Key
    from shardctl.topology.model import NodeName

    Run = Callable[[NodeName, Sequence[ShardId], float | None], Answer]
    """Asks shards of a node, until a time on `time.monotonic`."""

_COPIED = 50
"""Rows a shard from which COPY is quicker than INSERT, though it takes a round trip a shard."""
_COPIED_ALIKE = {int, str, type(None)}
"""Of these, COPY writes what INSERT does. It writes other text of a UUID into a column of text, and
refuses a Decimal in one of integers.
"""


class ShardedDatabase(OneShard):
    """A sharded database for applications with threads, which may share it.

    Use it in a `with`, or call `close`. A child of a process that forks has connections of
    its own. Connections are opened when needed.

    - `source`: a topology (or its file), or the connection string of a node or of a pooler's
      alias: a string with `=` or `://` in it
    - `through`: `"poolers"` or `"nodes"` of a topology; its poolers, if there are any
    - `connect`: further keywords of libpq, such as `{"user": "web"}`
    - `nodes`: a connection string for each node, for use without a topology or a pooler
    - `pool`: sizes and times of the pool of each node, and what psycopg is to do with connections
    - `patience`: how many seconds a statement waits for a shard that is fenced and not yet on
      another node
    - `on_statement`: called with a `StatementEvent` after each statement; it must not raise

    A shard key is an integer, a string or a `uuid.UUID`. `fields` are one field or a list of
    them; an expression is a `psycopg.sql.SQL`. `where` is SQL of the application's own, with `%s`
    or `%(name)s` for `parameters`. Every call raises psycopg's errors, NoConnection where no
    connection came within the pool's `timeout`, and NameRefused for what is no name.
    """

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

    def insert_many(
        self,
        table: str,
        rows: Sequence[Mapping[str, Any]],
        *,
        key_field: str,
        on_conflict: Where | None = None,
    ) -> int:
        """Write rows into the shards of their keys, all nodes at once; give how many.

        All rows have the same fields, and each has its shard key in `key_field`. `on_conflict` is
        what SQL has after ON CONFLICT, such as `"DO NOTHING"`. The rows of one node are one
        transaction. Where a node fails, the rows of others may have been written: its error is
        raised, and with `on_conflict` the call can be repeated. Raises ValueError where fields
        differ.

            db.insert_many("likes", [{"user_id": 5, "photo_id": 7}], key_field="user_id")
        """
        if not rows:
            return 0
        fields, given = core.grouped(rows, key_field, self._known.map.shard_of)
        conflict = statements.condition(on_conflict, None)

        def copy(node: NodeName, shards: Sequence[ShardId], _: float | None) -> Answer:
            written = 0
            try:
                with self._nodes.transaction(node, b"BEGIN") as connection:
                    for shard in shards:
                        cursor = psycopg.Cursor(connection, row_factory=tuple_row)
                        into = statements.copy(self._known.schemas[shard], table, fields)
                        with cursor.copy(into) as copying:
                            for of_row in given[shard]:
                                copying.write_row(of_row)
                        written += cursor.rowcount
            except (errors.WrongObjectType, errors.FeatureNotSupported):
                return write(node, shards, None)  # a view, or row security
            return Answer([], written)

        def write(node: NodeName, shards: Sequence[ShardId], _: float | None) -> Answer:
            cursors = []
            with (
                self._nodes.transaction(node, b"BEGIN") as connection,
                connection.pipeline(),  # all of them as one round trip
            ):
                for shard in shards:
                    schema, mine = self._known.schemas[shard], given[shard]
                    for one in statements.insert_rows(schema, table, fields, mine, conflict):
                        cursors.append(psycopg.Cursor(connection, row_factory=tuple_row))
                        cursors[-1].execute(*one)
            return Answer([], sum(cursor.rowcount for cursor in cursors))

        run = copy if conflict is None and _are_copied(rows, len(given)) else write
        answers = self._on_shards("insert_many", table, list(given), run, None)
        return sum(answer.touched for answer in answers)

    def select_keys(
        self,
        fields: Names,
        table: str,
        keys: Collection[Key],
        where: Where | None = None,
        parameters: Parameters = None,
        order_by: str | Sequence[str] | None = None,
        limit: int | None = None,
        *,
        key_field: str,
        limit_per_key: int | None = None,
        timeout: float | None = None,
    ) -> list[Row]:
        """Read rows of some keys: one statement a node, of these keys' shards alone.

        `key_field` is the field that has the key. Rows are a list of tuples, in one order, at
        most `limit`, and at most `limit_per_key` of each key: the first in that order. After
        `timeout` seconds what has not answered raises DeadlinePassed. Raises OrderUnsupported,
        and WritesUnseen within a `shard()` that has changed a table of these shards.

            db.select_keys(["id", "user_id"], "photos", followed, key_field="user_id",
                                 order_by="-id", limit=30)
        """
        if merging.aggregates(fields):
            raise ValueError("aggregates are of all rows: scatter() computes them")
        asked, named = merging.gathering(fields, table, where, parameters, order_by, limit)
        per_key = statements.number(limit_per_key)
        of_shard: defaultdict[ShardId, list[Key]] = defaultdict(list)
        shard_of = self._known.map.shard_of
        distinct = dict.fromkeys(keys)
        for key in distinct:
            of_shard[shard_of(key)].append(key)
        texts = any(isinstance(key, str) for key in distinct)

        def read(node: NodeName, shards: Sequence[ShardId], until: float | None) -> Answer:
            schemas = [self._known.schemas[shard] for shard in shards]
            statement = merging.select_keys(schemas, asked, key_field, per_key, texts=texts)
            lists = {merging.keys_of(n): of_shard[shard] for n, shard in enumerate(shards)}
            return self._nodes.execute(node, statement, named | lists, until=until)

        self._require_seen(of_shard)
        answers = self._on_shards("select_keys", table, list(of_shard), read, timeout)
        return merging.merged(asked, answers)

    def scatter(
        self,
        fields: Fields,
        table: str,
        where: Where | None = None,
        parameters: Parameters = None,
        order_by: str | Sequence[str] | None = None,
        *,
        limit: int,
        timeout: float | None = None,
    ) -> list[Row]:
        """Read at most `limit` rows of all shards: one statement a node, all nodes at once.

        Rows are a list of tuples, in one order. Aggregates instead of fields give one row, of all
        shards. After `timeout` seconds what has not answered raises DeadlinePassed. Raises
        OrderUnsupported, and WritesUnseen within a `shard()` that has changed a table.

            db.scatter(["id", "user_id"], "photos", order_by="-id", limit=30)
            [(photos,)] = db.scatter(Aggregate.count(), "photos", limit=1)
        """
        computed = merging.aggregates(fields)
        most = None if computed else limit
        asked, named = merging.gathering(fields, table, where, parameters, order_by, most)

        def read(node: NodeName, shards: Sequence[ShardId], until: float | None) -> Answer:
            statement = merging.gather([self._known.schemas[shard] for shard in shards], asked)
            return self._nodes.execute(node, statement, named, until=until)

        every = list(map(ShardId, range(len(self._known.map.owners))))
        self._require_seen(every)
        answers = self._on_shards("scatter", table, every, read, timeout)
        return [merging.combined(computed, answers)] if computed else merging.merged(asked, answers)

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

    def _on_shards(
        self,
        call: str,
        table: str,
        shards: Sequence[ShardId],
        run: Run,
        seconds: float | None,
    ) -> list[Answer]:
        """Ask shards, all nodes at once.

        Raises DeadlinePassed, and what the first node to fail has raised.
        """
        if not shards:
            return []
        self._require_committed(shards)
        until = None if seconds is None else time.monotonic() + seconds
        parts = self._parts(shards)
        told = partial(self._told, call, table)
        calls = [partial(self._on_part, node, part, run, until, told) for node, part in parts]
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
        run: Run,
        until: float | None,
        told: Callable[..., contextlib.AbstractContextManager[None]],
        *,
        again: bool = False,
    ) -> list[Answer]:
        """Ask shards of one node; once more, and where they are then, if one was missing there."""
        try:
            with told(node, shards, repeated=again):
                return [run(node, shards, until)]
        except FENCED:
            if again or self._fence.look(node, shards, until) is Look.AWAY:
                if not again and until is not None and time.monotonic() >= until:
                    raise TimeoutError("no answer in time") from None
                raise
        found: list[Answer] = []
        for owner, part in self._known.by_node(shards).items():
            found += self._on_part(owner, part, run, until, told, again=True)
        self._known.count_repeated()
        return found

    def _require_seen(self, asked: Collection[int]) -> None:
        """See that the caller's open transactions have changed none of the shards asked."""
        for shard, connection in list(self._opened.get(myself(), ())):
            status = connection.info.transaction_status
            piped = connection.info.pipeline_status is PipelineStatus.ON
            if shard in asked and (piped or status is TransactionStatus.INTRANS):
                cursor = psycopg.Cursor(connection, row_factory=tuple_row)
                cursor.execute(core.CHANGING)
                if cursor.fetchone():
                    raise WritesUnseen(shard)

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


def _are_copied(rows: Sequence[Mapping[str, Any]], shards: int) -> bool:
    """Return whether rows for so many shards are better copied, and come out the same."""
    kinds = {type(value) for row in rows for value in row.values()}
    return len(rows) >= _COPIED * shards and kinds <= _COPIED_ALIKE
