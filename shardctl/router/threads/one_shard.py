"""Calls of one shard."""

# `make docs` writes this from router/tasks: do not edit.

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg

from shardctl.router import core, statements
from shardctl.router.concurrency import Workers, myself, sleep
from shardctl.router.core import Routed
from shardctl.router.errors import WritesUnseen, id_given, keys_not_ids
from shardctl.router.refusals import FENCED, FENCED_WITHIN, REPEATABLE, Look, is_of, pauses
from shardctl.router.threads.fence import Fence
from shardctl.router.threads.nodes import Nodes
from shardctl.topology.model import ShardId

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from shardctl.router.statements import Answer, Names, Parameters, Row, Where
    from shardctl.topology.keys import Key
    from shardctl.topology.model import NodeName

Result = TypeVar("Result")


class OneShard(Routed):
    """A sharded database, as far as one shard is asked."""

    def _set_up(self) -> None:
        self._workers = Workers()
        self._nodes = Nodes(self._known, self._settings)
        self._fence = Fence(self._known, self._nodes, self._workers)

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
        shard = self._known.shard_of(shard_key)
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
        return self._insert("insert", self._known.shard_of(shard_key), table, values, returning)

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
        shard = self._known.shard_of(shard_key)
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
        shard = self._known.shard_of(shard_key)
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
        node = self._known.owner(shard)
        begin = statements.begin(self._known.schema(shard))
        try:
            with self._told("shard", None, node, [shard]):
                with self._nodes.transaction(node, begin) as connection:
                    with self._noted(myself(), shard, connection):
                        yield connection
        except psycopg.Rollback as error:  # as psycopg's own transactions do
            if error.transaction is not None:
                raise
        except Exception as error:
            if is_of(error, FENCED_WITHIN):
                self._fence.require_unmoved(node, shard)
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
        whole = statements.within(self._known.schema(shard), parameters is not None) + text.encode()
        run = partial(self._nodes.cursor, statement=whole, parameters=parameters)
        return self._where_it_is("execute", None, shard, run, FENCED_WITHIN)

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
        run = partial(self._nodes.execute, statement=statement, parameters=given)
        return self._where_it_is(call, table, shard, run)

    def _where_it_is(
        self,
        call: str,
        table: str | None,
        shard: ShardId,
        run: Callable[[NodeName], Result],
        fenced: tuple[type[psycopg.Error], ...] = FENCED,
    ) -> Result:
        """Do what is one transaction on a shard's node; once more if it was missing there."""
        self._require_committed([shard])
        node = self._known.owner(shard)
        try:
            with self._told(call, table, node, [shard]):
                return run(node)
        except fenced:
            # The statement was refused, so that it may be sent again: nothing was written.
            if self._fence.look(node, [shard]) is Look.AWAY:
                raise
        node = self._known.owner(shard)
        with self._told(call, table, node, [shard], repeated=True):
            answer = run(node)
        self._known.count_repeated()
        return answer

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
