"""A sharded database, as applications call it."""

# `make docs` writes this from router/tasks: do not edit.

from __future__ import annotations

import contextlib
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

import psycopg
from psycopg import errors
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from shardctl.router import core, merging, statements
from shardctl.router.concurrency import myself, sleep, together
from shardctl.router.core import NodeHealth, Routed
from shardctl.router.errors import (
    FENCED,
    FENCED_WITHIN,
    REPEATABLE,
    Look,
    ShardMoved,
    WritesUnseen,
    id_given,
    is_of,
    keys_not_ids,
    pauses,
    reasons,
)
from shardctl.router.statements import Answer
from shardctl.router.threads.nodes import Nodes
from shardctl.state import map as maps
from shardctl.topology.model import NodeName, ShardId

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from shardctl.router.statements import Fields, Names, Parameters, Row, Where
    from shardctl.topology.keys import Key

Result = TypeVar("Result")
Run = Callable[[NodeName, Sequence[ShardId]], Result]
"""Asks shards of a node."""


class ShardedDatabase(Routed):
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

    _nodes: Nodes

    def _set_up(self) -> None:
        self._nodes = Nodes(self._known, self._settings)

    def open(self) -> Self:
        """Read the first map, where there is no topology; raises MapUnread.

        With a topology there is nothing to do.
        """
        self._nodes.begin(self._source)
        return self

    def close(self, timeout: float = 5.0) -> None:
        """Close all pools; connections in use are closed when they come back."""
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
        """Read rows of a key's shard: a list of tuples, in the order of `fields`.

        `order_by` is a field or a list of them, with a minus sign in front for descending order.

            db.select(["id", "caption"], "photos", user, "id > %s", [last], "-id", 30)
        """
        shard = self._known.map.shard_of(shard_key)
        statement = statements.select(
            table,
            statements.terms(fields),
            statements.condition(where, parameters),
            statements.orders(order_by),
            statements.number(limit),
        )
        return self._on_shard("select", table, shard, statement, parameters).rows

    def insert(
        self,
        table: str,
        shard_key: Key,
        values: Mapping[str, Any],
        returning: Names | None = "id",
    ) -> Any:
        """Write a row into a key's shard; give the field that is `returning`.

        A tuple where `returning` is a list, and None where it is None, or where a trigger or a
        rule has left the row out.

            photo = db.insert("photos", user, {"user_id": user, "caption": "dusk"})
        """
        return self._insert("insert", self._known.map.shard_of(shard_key), table, values, returning)

    def insert_new(self, table: str, values: Mapping[str, Any], returning: Names = "id") -> Any:
        """Write a row whose id is its key, into a shard that is chosen evenly; give the id.

        `returning` is as of `insert`, and its first field is the id. Raises keys_not_ids without
        `shards: {key: id}` in the topology, and id_given.

            user = db.insert_new("users", {"name": "Ada"})
        """
        if (rule := self._known.map.key_rule) != "id":
            raise keys_not_ids(rule)
        identity = statements.terms(returning)[0]
        if identity in values:
            raise id_given(identity)
        # From the system: the state of a generator of our own would be the same in forked children.
        shard = ShardId(secrets.randbelow(len(self._known.map.owners)))
        return self._insert("insert_new", shard, table, values, returning)

    def update(
        self,
        table: str,
        shard_key: Key,
        values: Mapping[str, Any],
        where: Where,
        parameters: Parameters = None,
        returning: Names | None = None,
    ) -> Any:
        """Change rows of a key's shard; give how many.

        With `returning`, a list of tuples of these fields instead.

            db.update("photos", user, {"caption": "dusk"}, "id = %s", [photo])
        """
        shard = self._known.map.shard_of(shard_key)
        text = statements.condition(where, parameters) or ""
        named, back = isinstance(parameters, Mapping), statements.terms(returning or ())
        statement = statements.update(table, tuple(values), text, named, back)
        given = statements.with_values(values, parameters)
        answer = self._on_shard("update", table, shard, statement, given)
        return answer.touched if returning is None else answer.rows

    def delete(
        self,
        table: str,
        shard_key: Key,
        where: Where,
        parameters: Parameters = None,
        returning: Names | None = None,
    ) -> Any:
        """Remove rows of a key's shard; give how many.

        With `returning`, a list of tuples of these fields instead.

            db.delete("photos", user, "id = %s", [photo], returning="image_url")
        """
        shard = self._known.map.shard_of(shard_key)
        text = statements.condition(where, parameters) or ""
        statement = statements.delete(table, text, statements.terms(returning or ()))
        answer = self._on_shard("delete", table, shard, statement, parameters)
        return answer.touched if returning is None else answer.rows

    @contextlib.contextmanager
    def shard(
        self, shard_key: Key | None = None, *, number: int | None = None
    ) -> Iterator[psycopg.Connection[Any]]:
        """Give a connection in a transaction in which unqualified names are a shard's.

        The shard is that of a key, or has the `number`. The transaction commits at the end of the
        block, and rolls back where that raises. Raises ShardMoved where the shard moved during
        the transaction: nothing was written, and the transaction can be run again.

            with db.shard(user) as connection:
                connection.execute("UPDATE photos SET caption = 'dusk'")
        """
        shard = self._shard(shard_key, number)
        self._require_committed([shard])
        node = self._known.map.owners[shard]
        begin = statements.begin(self._known.schemas[shard])
        try:
            with self._told("shard", None, node, [shard]):
                with self._nodes.transaction(node, begin) as connection:
                    with self._noted(myself(), shard, connection):
                        yield connection
        except psycopg.Rollback as error:  # as psycopg's own transactions do
            if error.transaction is not None:
                raise
        except Exception as error:
            if is_of(error, FENCED_WITHIN) and self._nodes.look(node, [shard]) is Look.SETTLED:
                raise ShardMoved(shard, node, self._known.map.owners[shard]) from error
            raise

    def transaction(
        self,
        shard_key: Key,
        work: Callable[..., Result],
        *args: Any,
        attempts: int = 3,
    ) -> Result:
        """Call `work` with a connection as of `shard()`, and `args`; give what it returns.

        Where its shard has moved, and after a deadlock or a serialization failure, nothing of it
        was written: it is called again, up to `attempts` times in all. So it should do nothing
        outside the database that may not be done twice. Raises what the last attempt raised.

            db.transaction(user, like, photo)
        """
        for left in reversed(range(attempts)):
            try:
                with self.shard(shard_key) as connection:
                    return work(connection, *args)
            except Exception as error:
                if not left or not is_of(error, REPEATABLE):
                    raise
        raise ValueError(f"attempts: expected a number from 1, found {attempts}")

    def execute(
        self,
        statement: Where,
        parameters: Parameters = None,
        shard_key: Key | None = None,
        *,
        number: int | None = None,
    ) -> psycopg.ClientCursor[Any]:
        """Run SQL of the application's own in a shard; give a cursor with its whole answer.

        Unqualified names are the shard's, which is that of a key, or has the `number`. It is a
        transaction of its own and one message: psycopg writes the parameters into the statement,
        as its `ClientCursor` does.

            db.execute("SELECT count(*) FROM photos WHERE user_id = %s", [user], user)
        """
        shard = self._shard(shard_key, number)
        text = statement if isinstance(statement, str) else statement.as_string(None)
        whole = (
            statements.within(self._known.schemas[shard], parameters is not None) + text.encode()
        )

        def run(node: NodeName, _: Sequence[ShardId]) -> Any:
            return self._nodes.cursor(node, whole, parameters)

        return self._on_one("execute", None, shard, run, FENCED_WITHIN)

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

        def copy(node: NodeName, shards: Sequence[ShardId]) -> Answer:
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
                return write(node, shards)  # a view, or row security
            return Answer([], written)

        def write(node: NodeName, shards: Sequence[ShardId]) -> Answer:
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

        run = copy if conflict is None and core.are_copied(rows, len(given)) else write
        answers = self._on_shards("insert_many", table, list(given), run)
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
        until = None if timeout is None else time.monotonic() + timeout

        def read(node: NodeName, shards: Sequence[ShardId]) -> Answer:
            schemas = [self._known.schemas[shard] for shard in shards]
            statement = merging.select_keys(schemas, asked, key_field, per_key, texts=texts)
            lists = {merging.keys_of(n): of_shard[shard] for n, shard in enumerate(shards)}
            return self._nodes.execute(node, statement, named | lists, until=until)

        self._require_seen(of_shard)
        answers = self._on_shards("select_keys", table, list(of_shard), read, until)
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
        until = None if timeout is None else time.monotonic() + timeout

        def read(node: NodeName, shards: Sequence[ShardId]) -> Answer:
            statement = merging.gather([self._known.schemas[shard] for shard in shards], asked)
            return self._nodes.execute(node, statement, named, until=until)

        every = list(map(ShardId, range(len(self._known.map.owners))))
        self._require_seen(every)
        answers = self._on_shards("scatter", table, every, read, until)
        return [merging.combined(computed, answers)] if computed else merging.merged(asked, answers)

    def read_map(self) -> int:
        """Read the map again, and give its version; raises MapUnread, MapWentBack.

        Nothing needs to call it: the map is read when a shard has moved.
        """
        self._nodes.begin(self._source)
        self._nodes.reread()
        return self._known.map.version

    def check(self, timeout: float = 5.0) -> dict[NodeName, NodeHealth]:
        """Check every node that owns shards, through its pool."""
        self._nodes.begin(self._source)
        owning = self._known.owning()
        until = time.monotonic() + timeout
        outcomes = together([partial(self._check, node, until) for node in owning])
        return {
            node: NodeHealth(reasons([outcome])[0], 0.0, None)
            if isinstance(outcome, BaseException)
            else outcome
            for node, outcome in zip(owning, outcomes, strict=True)
        }

    def _on_shards(
        self,
        call: str,
        table: str,
        shards: Sequence[ShardId],
        run: Run[Answer],
        until: float | None = None,
    ) -> list[Answer]:
        """Ask shards, all nodes at once.

        Raises DeadlinePassed, and what the first node to fail has raised.
        """
        self._require_committed(shards)
        parts, told = self._parts(shards), partial(self._told, call, table)
        calls = [partial(self._on_part, node, part, run, until, told) for node, part in parts]
        outcomes = together(calls)
        return core.answers([part for _, part in parts], outcomes, until)

    def _on_part(
        self,
        node: NodeName,
        shards: Sequence[ShardId],
        run: Run[Result],
        until: float | None,
        told: Callable[..., contextlib.AbstractContextManager[None]],
        *,
        fenced: tuple[type[psycopg.Error], ...] = FENCED,
        again: bool = False,
    ) -> list[Result]:
        """Ask shards of one node; once more, and where they are then, if one was missing there."""
        try:
            with told(node, shards, repeated=again):
                return [run(node, shards)]
        except fenced:
            # The statement was refused, so that it may be sent again: nothing was written.
            if again or self._nodes.look(node, shards, until) is Look.AWAY:
                if not again and until is not None and time.monotonic() >= until:
                    raise TimeoutError("no answer in time") from None
                raise
        found: list[Result] = []
        for owner, part in self._known.by_node(shards).items():
            found += self._on_part(owner, part, run, until, told, fenced=fenced, again=True)
        self._known.count_repeated()
        return found

    def _insert(
        self,
        call: str,
        shard: ShardId,
        table: str,
        values: Mapping[str, Any],
        returning: Names | None,
    ) -> Any:
        back = () if returning is None else statements.terms(returning)
        statement = statements.insert(table, tuple(values), back)
        answer = self._on_shard(call, table, shard, statement, tuple(values.values()))
        row = answer.rows[0] if answer.rows else None
        return row[0] if row and isinstance(returning, str) else row

    def _on_shard(
        self, call: str, table: str, shard: ShardId, statement: bytes, parameters: Parameters
    ) -> Answer:
        """Run a statement on its shard's node; once more if the shard was missing there."""
        given = () if parameters is None else parameters
        statement = statements.of_shard(statement, self._known.schemas[shard])

        def run(node: NodeName, _: Sequence[ShardId]) -> Answer:
            return self._nodes.execute(node, statement, given)

        return self._on_one(call, table, shard, run)

    def _on_one(
        self,
        call: str,
        table: str | None,
        shard: ShardId,
        run: Run[Result],
        fenced: tuple[type[psycopg.Error], ...] = FENCED,
    ) -> Result:
        """Do what is one transaction on a shard's node; once more if it was missing there."""
        self._require_committed([shard])
        node, told = self._known.map.owners[shard], partial(self._told, call, table)
        [answer] = self._on_part(node, [shard], run, None, told, fenced=fenced)
        return answer

    def _require_committed(self, shards: Sequence[ShardId]) -> None:
        """In a test fleet, see that no session has open changes of these; raises WritesUnseen.

        A session whose client does nothing for a second waits for this call: the same test has
        begun its transaction. That of another thread or task ends, or goes on, meanwhile.
        """
        if not self._known.in_tests:
            return
        for node, part in self._known.by_node(shards).items():
            lasting = None
            until = time.monotonic() + core.LASTING_S
            schemas = [self._known.schemas[shard] for shard in part]
            for pause in pauses():
                found = set(self._nodes.execute(node, core.CHANGED, [schemas]).rows)
                lasting = found if lasting is None else lasting & found
                if not lasting:
                    break
                if time.monotonic() >= until:
                    schema, pid, name, _ = min(lasting)
                    raise WritesUnseen(ShardId(self._known.schemas.index(schema)), pid, name)
                sleep(pause)

    def _require_seen(self, asked: Collection[int]) -> None:
        """See that the caller's open transactions have changed none of the shards asked."""
        for shard, connection in list(self._opened.get(myself(), ())):
            status = connection.info.transaction_status
            piped = connection.info.pipeline_status is PipelineStatus.ON
            if shard in asked and (piped or status is TransactionStatus.INTRANS):
                cursor = psycopg.Cursor(connection, row_factory=tuple_row)
                cursor.execute(core.CHANGING)
                if (row := cursor.fetchone()) is not None:
                    raise WritesUnseen(shard, row[1], row[2])

    def _check(self, node: NodeName, until: float) -> NodeHealth:
        """Ask a node for its map over a connection of its pool."""
        began = time.perf_counter()
        answer = self._nodes.execute(node, maps.READ, until=until)
        return core.health(self._known, node, answer, (time.perf_counter() - began) * 1000)
