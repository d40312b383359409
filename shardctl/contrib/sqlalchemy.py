"""SQLAlchemy's sessions on a sharded database: each in a transaction of one shard.

One engine makes no connections of its own: it is given the router's, one for each session, and
gives it back without closing it. So its cache of compiled statements serves all shards, because
unqualified names are those of the session's shard.
"""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus
from sqlalchemy import ARRAY, any_, bindparam, create_engine, event, type_coerce
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg, PGDialectAsync_psycopg
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool
from sqlalchemy.sql import operators
from sqlalchemy.types import NullType

from shardctl.errors import UsageError
from shardctl.router import merging
from shardctl.router.merging import Gathering
from shardctl.router.statements import Answer, Order

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence

    from sqlalchemy import ColumnElement, Select

    from shardctl.router import AsyncShardedDatabase, ShardedDatabase
    from shardctl.topology.keys import Key
    from shardctl.topology.model import NodeName, ShardId

Result = TypeVar("Result")

_lent: ContextVar[Any] = ContextVar("the router's connection that the engine gets next")
_KEYS = "shardctl_keys"
"""The parameter with the keys of all shards of a statement."""
_PART = "shardctl's part of a merge"
"""By this name a connection knows what the next statement is a part of."""
_SHARD = '"\0"'
"""In place of this each shard's schema is written: no name of the application's has a NUL."""


class Dialect(PGDialect_psycopg):
    """psycopg's dialect on connections of the router's."""

    supports_statement_cache = True

    @classmethod
    def get_async_dialect_cls(cls, _: Any) -> Any:
        """Give the dialect of asynchronous engines."""
        return AsyncDialect

    def do_begin(self, dbapi_connection: Any) -> None:
        """Begin nothing: `shard()` has. Raises psycopg.ProgrammingError where that has ended."""
        if _driver(dbapi_connection).info.transaction_status is TransactionStatus.IDLE:
            raise psycopg.ProgrammingError("the session's transaction was rolled back")

    def do_rollback(self, dbapi_connection: Any) -> None:
        """Roll back; not after the questions that an engine asks on its first connection."""
        if _lent.get(None) is None:
            with _ending(_driver(dbapi_connection)):
                super().do_rollback(dbapi_connection)  # type: ignore[no-untyped-call]  # its

    def do_close(self, dbapi_connection: Any) -> None:
        """Leave it open: the router has it back."""

    do_terminate = do_close


class AsyncDialect(Dialect, PGDialectAsync_psycopg):
    """The same for asyncio."""

    supports_statement_cache = True


registry.register("postgresql.shardctl", __name__, "Dialect")


def _engine(make: Callable[..., Any], **creator: Any) -> Any:
    # hstore would be looked for in `public`, where an extension puts it and no shard's path leads.
    options = {"poolclass": NullPool, "pool_reset_on_return": None, "use_native_hstore": False}
    return make("postgresql+shardctl://", **options, **creator)


def _taken() -> Any:
    connection = _lent.get(None)
    if connection is None:  # SQLAlchemy would have one in place of one that broke
        raise psycopg.OperationalError("a session has the one connection of its transaction")
    return connection


async def _taken_async() -> Any:
    return _taken()


@contextlib.contextmanager
def _given(connection: Any) -> Iterator[None]:
    """Let the engine that connects get a connection of the router's."""
    token = _lent.set(connection)
    try:
        yield
    finally:
        _lent.reset(token)


def _merging(engine: Any) -> Any:
    """Give an engine like this one, whose statements go to the shards of a part of a merge."""
    found = engine.execution_options(schema_translate_map={None: _SHARD.strip('"')})
    listened = getattr(found, "sync_engine", found)

    @event.listens_for(listened, "before_cursor_execute", retval=True)
    def united(bound: Any, _: Any, statement: str, given: Any, *_more: Any) -> Any:
        return bound.info[_PART].unite(statement, given)

    @event.listens_for(listened, "after_cursor_execute")
    def noted(bound: Any, cursor: Any, *_more: Any) -> None:
        bound.info[_PART].note(cursor)

    return found


def _bound(connection: Any) -> dict[Any, Any]:
    """Give what each engine keeps of a connection of the router's, from session to session."""
    # In it, because a table of them would never let one go.
    found: dict[Any, Any] = vars(connection).setdefault("bound_by_sqlalchemy", {})
    for engine in [
        engine
        for engine, one in found.items()
        if one.closed or one.invalidated or one.in_transaction()
    ]:
        del found[engine]
    return found


def _driver(connection: Any) -> Any:
    """Give psycopg's connection within one of SQLAlchemy's."""
    adapted = getattr(connection, "dbapi_connection", connection)
    return getattr(adapted, "driver_connection", adapted)


@contextlib.contextmanager
def _ending(connection: Any) -> Iterator[None]:
    """Let a session end the transaction of a connection that `shard()` has lent."""
    within, connection._num_transactions = connection._num_transactions, 0  # noqa: SLF001  # psycopg's
    try:
        yield
    finally:
        connection._num_transactions = within  # noqa: SLF001  # same


class ShardSessions:
    """Sessions of a `ShardedDatabase`, for all threads; `options` are those of each `Session`.

    They do not expire objects when they commit, unless `expire_on_commit` says so: the session
    has ended then, and could not read them again.
    """

    def __init__(self, db: ShardedDatabase, **options: Any) -> None:
        self._db = db
        self._options = {"expire_on_commit": False} | options
        self._engine = _engine(create_engine, creator=_taken)
        self._merging = _merging(self._engine)

    @contextlib.contextmanager
    def __call__(
        self, shard_key: Key | None = None, *, number: int | None = None
    ) -> Iterator[Session]:
        """Give a session in a transaction of a key's shard, or of the shard with the `number`.

        It commits at the end of the block, and rolls back where that raises: `commit()` raises
        SQLAlchemy's ProgrammingError in it, and so does everything after `rollback()`.
        `begin_nested()` makes savepoints.
        Raises ShardMoved where the shard moved during the transaction: nothing was written.

            with sessions(user) as session:
                session.add(Photo(user_id=user, caption="dusk"))
        """
        with (
            self._db.shard(shard_key, number=number) as connection,
            self._on(connection, self._engine) as session,
        ):
            yield session

    def run(
        self, shard_key: Key, work: Callable[..., Result], *args: Any, attempts: int = 3
    ) -> Result:
        """Call `work` with a session, and `args`; give what it returns.

        Where its shard has moved, and after a deadlock or a serialization failure, nothing of it
        was written: it is called again, with a new session, up to `attempts` times in all. Raises
        what the last attempt raised.
        """

        def within(connection: Any) -> Result:
            with self._on(connection, self._engine) as session:
                return work(session, *args)

        return self._db.transaction(shard_key, within, attempts=attempts)

    def merge(
        self,
        statement: Any,
        keys: Collection[Key],
        order_by: Any = (),
        limit: int | None = None,
        *,
        key: Any,
    ) -> list[Any]:
        """Read rows of some keys: one statement a node, of these keys' shards alone.

        `statement` is a select() without an order, and `key` the column that has the key. Gives
        tuples in one order, at most `limit`, or values where one thing is selected; entities are
        detached. Raises psycopg's errors, OrderUnsupported, TypeError for an order that is none,
        and WritesUnseen within a session that has changed a table of these shards.

            sessions.merge(select(Photo), followed, Photo.id.desc(), 30, key=Photo.user_id)
        """
        asked = _Merge.of(self._db, statement, keys, order_by, limit, key=key)

        def read(node: NodeName, shards: Sequence[ShardId]) -> Answer:
            with (
                self._db._nodes.transaction(node, b"BEGIN READ ONLY") as connection,  # noqa: SLF001
                _as_psycopg(),
                self._on(connection, self._merging) as session,
            ):
                part = asked.on(session.connection(), shards)
                return part.answer(session.execute(part.statement, part.parameters).all())

        self._db._require_seen(asked.of_shard)  # noqa: SLF001  # one package
        answers = self._db._on_shards("merge", asked.table, list(asked.of_shard), read)  # noqa: SLF001
        return asked.merged(answers)

    @contextlib.contextmanager
    def _on(self, connection: Any, engine: Any) -> Iterator[Session]:
        """Give a session on a connection that the router has lent; it ends the transaction."""
        bound = _bound(connection)
        if engine not in bound:
            with _given(connection):
                bound[engine] = engine.connect()
            bound[engine].detach()
        with Session(bind=bound[engine], **self._options) as session:
            yield session
            with _ending(connection):
                session.commit()


class AsyncShardSessions:
    """The same on an `AsyncShardedDatabase`; `options` are those of each `AsyncSession`."""

    def __init__(self, db: AsyncShardedDatabase, **options: Any) -> None:
        self._db = db
        self._options = {"expire_on_commit": False} | options
        self._engine = _engine(create_async_engine, async_creator=_taken_async)
        self._merging = _merging(self._engine)

    @contextlib.asynccontextmanager
    async def __call__(
        self, shard_key: Key | None = None, *, number: int | None = None
    ) -> AsyncIterator[AsyncSession]:
        """Give a session in a transaction of a key's shard, as `ShardSessions` does."""
        async with (
            self._db.shard(shard_key, number=number) as connection,
            self._on(connection, self._engine) as session,
        ):
            yield session

    async def run(
        self, shard_key: Key, work: Callable[..., Awaitable[Result]], *args: Any, attempts: int = 3
    ) -> Result:
        """Call `work` with a session, and `args`, again as `ShardSessions.run` does."""

        async def within(connection: Any) -> Result:
            async with self._on(connection, self._engine) as session:
                return await work(session, *args)

        return await self._db.transaction(shard_key, within, attempts=attempts)

    async def merge(self, *given: Any, **named: Any) -> list[Any]:
        """Read rows of some keys, as `ShardSessions.merge` does."""
        asked = _Merge.of(self._db, *given, **named)

        async def read(node: NodeName, shards: Sequence[ShardId]) -> Answer:
            async with self._db._nodes.transaction(node, b"BEGIN READ ONLY") as connection:  # noqa: SLF001
                with _as_psycopg():
                    async with self._on(connection, self._merging) as session:
                        part = asked.on(await session.connection(), shards)
                        found = await session.execute(part.statement, part.parameters)
                        return part.answer(found.all())

        await self._db._require_seen(asked.of_shard)  # noqa: SLF001  # one package
        answers = await self._db._on_shards("merge", asked.table, list(asked.of_shard), read)  # noqa: SLF001
        return asked.merged(answers)

    @contextlib.asynccontextmanager
    async def _on(self, connection: Any, engine: Any) -> AsyncIterator[AsyncSession]:
        bound = _bound(connection)
        if engine not in bound:
            with _given(connection):
                bound[engine] = await engine.connect()
            bound[engine].sync_connection.detach()
        async with AsyncSession(bind=bound[engine], **self._options) as session:
            yield session
            with _ending(connection):
                await session.commit()


@contextlib.contextmanager
def _as_psycopg() -> Iterator[None]:
    """Raise psycopg's errors instead of SQLAlchemy's: the router looks for the fence in them."""
    try:
        yield
    except DBAPIError as error:
        raise (error.orig or error) from error


@dataclass(slots=True)
class _Merge:
    """Rows of some keys: what is selected, in which order, of which shards."""

    statement: Select[Any]
    asked: Gathering
    of_shard: dict[ShardId, list[Key]]
    schemas: Sequence[str]
    shard_of: Callable[[Key], ShardId]
    types: list[int] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        db: ShardedDatabase | AsyncShardedDatabase,
        statement: Any,
        keys: Collection[Key],
        order_by: Any = (),
        limit: int | None = None,
        *,
        key: Any,
    ) -> _Merge:
        """Take what an application asks for; raises TypeError for what it cannot have."""
        if statement._has_row_limiting_clause or statement._order_by_clauses:  # noqa: SLF001
            raise TypeError("pass order_by and limit to merge(): they are of all shards' rows")
        listed = order_by if isinstance(order_by, list | tuple) else [order_by]
        columns = [_order(one) for one in listed]
        orders = [Order(f"shardctl order {n}", down) for n, (_, down) in enumerate(columns)]
        # Without its type, because rows are ordered by what PostgreSQL has.
        bare = [type_coerce(column, NullType()) for column, _ in columns]
        whole = statement.where(key == any_(bindparam(_KEYS, type_=ARRAY(key.type))))
        selected = statement.column_descriptions
        of_key = getattr(getattr(key, "parent", None), "entity", None)
        read = of_key is not None and of_key in [one.get("entity") for one in selected]
        # To ask for the tables takes a millisecond.
        if not read and len(whole.get_final_froms()) > len(statement.get_final_froms()):
            raise TypeError(f"key: {key} is of no table that the select() reads")
        whole = whole.order_by(*listed).limit(limit)
        labelled = (c.label(o.field) for c, o in zip(bare, orders, strict=True))
        whole = whole.add_columns(key.label("shardctl key"), *labelled)
        of_shard: dict[ShardId, list[Key]] = {}
        for one in dict.fromkeys(keys):
            of_shard.setdefault(db.shard_of(one), []).append(one)
        fields = [f"shardctl field {n}" for n, _ in enumerate(selected)]
        asked = Gathering(str(key.table.name), tuple(fields), None, tuple(orders), limit)
        return cls(whole, asked, of_shard, db._known.schemas, db.shard_of)  # noqa: SLF001  # one package

    @property
    def table(self) -> str:
        return self.asked.table

    def on(self, bound: Any, shards: Sequence[ShardId]) -> _Merge:
        """Give the part that a node has, and let its connection send it as one statement.

        So do statements that load what belongs to its rows, such as those of `selectinload`.
        """
        part = replace(self, of_shard={shard: self.of_shard[shard] for shard in shards}, types=[])
        bound.info[_PART] = part
        return part

    @property
    def parameters(self) -> dict[str, list[Key]]:
        return {_KEYS: [key for keys in self.of_shard.values() for key in keys]}

    def unite(self, statement: str, given: Any) -> tuple[str, dict[str, Any]]:
        """Write the statement once for each shard, with that shard's keys."""
        given, parts, used = dict(given), [], 0
        all_keys = given.pop(_KEYS, None)
        for number, (shard, keys) in enumerate(self.of_shard.items()):
            schema = sql.Identifier(self.schemas[shard].replace("%", "%%")).as_string(None)
            mine = f"{_KEYS}_{number}"
            parts.append(statement.replace(_SHARD, schema).replace(f"%({_KEYS})s", f"%({mine})s"))
            if all_keys is not None:
                given[mine] = all_keys[used : used + len(keys)]
                used += len(keys)
        if len(parts) == 1:
            return parts[0], given
        whole = "\nUNION ALL ".join(f"({one})" for one in parts)
        return whole + ("" if all_keys is None else self._cut()), given

    def _cut(self) -> str:
        by = ", ".join(
            sql.Identifier(order.field).as_string(None) + (" DESC" if order.descending else "")
            for order in self.asked.order
        )
        most = "" if self.asked.limit is None else f"\nLIMIT {self.asked.limit:d}"
        return (f"\nORDER BY {by}" if by else "") + most

    def note(self, cursor: Any) -> None:
        """Note the types of the columns by which the first statement's rows are ordered."""
        if not self.types:
            count = len(self.asked.order)
            self.types = [column.type_code for column in cursor.description[-count or None :]]

    def answer(self, rows: Sequence[Any]) -> Answer:
        """Give a node's rows; raises UsageError where one object would stand for two of them."""
        width = len(self.asked.fields)
        shard_of_object: dict[int, ShardId] = {}
        for row in rows:
            for one in row[:width]:
                if hasattr(one, "_sa_instance_state"):
                    shard = self.shard_of(row[width])
                    if shard_of_object.setdefault(id(one), shard) != shard:
                        raise UsageError(
                            f"{type(one).__name__}: rows of several shards have one primary key, "
                            "and a session knows a row by it",
                            hint="select columns, or let next_id() make the primary key",
                        )
        types = (*[0] * width, *self.types)
        return Answer([(*row[:width], *row[width + 1 :]) for row in rows], len(rows), types)

    def merged(self, answers: Sequence[Answer]) -> list[Any]:
        found = merging.merged(self.asked, answers)
        return [row[0] for row in found] if len(self.asked.fields) == 1 else found


def _order(given: ColumnElement[Any]) -> tuple[Any, bool]:
    """Take an order apart: its column, and whether it is descending."""
    modifier = getattr(given, "modifier", None)
    if modifier not in {None, operators.asc_op, operators.desc_op} or isinstance(given, str):
        raise TypeError(f"order_by: expected columns, such as Photo.id.desc(), found {given!r}")
    return given if modifier is None else given.element, modifier is operators.desc_op
