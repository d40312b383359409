"""Django's backend for PostgreSQL, with the router's connections instead of its own.

Outside `atomic()` each statement is a transaction of its own, in one round trip, and keeps no
connection. Within it, the first statement takes one, and the end of the block gives it back.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import psycopg
from django.conf import settings
from django.db import NotSupportedError, ProgrammingError
from django.db.backends.postgresql import (
    base,
    features,
    introspection,
    operations,
    psycopg_any,
    schema,
)
from psycopg import sql
from psycopg.adapt import AdaptersMap

from shardctl.contrib.django import fleet
from shardctl.contrib.django.backend.creation import DatabaseCreation
from shardctl.router import ShardMoved
from shardctl.router.errors import FENCED_WITHIN, is_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


class ShardConnection:
    """What Django takes for psycopg's connection: it has one only during a transaction."""

    def __init__(self, wrapper: DatabaseWrapper) -> None:
        self.autocommit = True
        self.closed = False
        self.adapters = AdaptersMap(wrapper.adapters)
        self._number = wrapper.settings_dict["OPTIONS"]["number"]
        self.block: Any = None
        """The open transaction of the router's."""
        self.lent: psycopg.Connection[Any] | None = None
        """Its connection."""
        self._failed: BaseException | None = None
        self.savepoints: list[str] = []
        """Those that are made with the first statement, if there is one."""

    connection = None
    """It may be what psycopg quotes values for, which asks for this."""

    def execute(self, statement: Any, parameters: Any) -> psycopg.Cursor[Any]:
        """Run a statement: in the open transaction, or in one of its own."""
        if self.autocommit and not self.closed:
            return fleet.database().execute(statement, parameters, number=self._number)
        with self.begun() as connection:
            return connection.execute(statement, parameters)

    @contextmanager
    def begun(self) -> Iterator[psycopg.Connection[Any]]:
        """Give a connection in a transaction, which `commit` or `rollback` ends.

        An error that may be the fence's is kept: the end of the transaction looks into it.
        """
        if self.closed:
            raise psycopg.OperationalError("the connection is closed")
        if self.lent is None:
            block = fleet.database().shard(number=self._number)
            self.lent, self.block = block.__enter__(), block
            for name in self.savepoints:
                self.lent.execute(sql.SQL("SAVEPOINT {}").format(sql.Identifier(name)))
            self.savepoints.clear()
        try:
            yield self.lent
        except psycopg.Error as error:
            if is_of(error, FENCED_WITHIN):
                self._failed = error
            raise

    def cursor(self, name: str | None = None) -> ShardCursor:
        """Give a cursor; one with a name is the server's, within a transaction."""
        return ShardCursor(self, None if self.autocommit else name)

    def commit(self) -> None:
        """Commit, if a statement has begun a transaction; raises ShardMoved."""
        self._end(None)

    def rollback(self) -> None:
        """Roll back; raises ShardMoved where the transaction failed as its shard moved."""
        self._end(self._failed or psycopg.Rollback())

    def close(self) -> None:
        """Roll back what is open."""
        self.closed = True
        self._end(psycopg.Rollback())

    def _end(self, error: BaseException | None) -> None:
        block, self.block, self.lent, self._failed = self.block, None, None, None
        self.savepoints.clear()
        if block is not None:
            block.__exit__(None if error is None else type(error), error, None)


class ShardCursor(base.CursorMixin):
    """A cursor of Django's whose answer stays when its connection has gone back."""

    _found: psycopg.Cursor[Any] | None = None
    _block: Any = None
    """The transaction that a cursor of the server's belongs to."""

    def __init__(self, connection: ShardConnection, name: str | None) -> None:
        self.connection = connection
        self._name = name

    def execute(self, statement: Any, parameters: Any = None) -> Self:
        """Run a statement in the shard."""
        if self._name is None:
            self._found = self.connection.execute(statement, parameters)
            return self
        with self.connection.begun() as connection:
            self._found = base.ServerSideCursor(connection, name=self._name, scrollable=False)
            self._block = self.connection.block
            self._found.execute(statement, parameters)
        return self

    def executemany(self, statement: Any, parameters: Iterable[Any]) -> None:
        """Run a statement with each of these: in the open transaction, or in one of its own."""
        alone, end = self.connection.autocommit, self.connection.rollback
        try:
            with self.connection.begun() as connection:
                self._found = connection.cursor()
                self._found.executemany(statement, parameters)
            end = self.connection.commit
        finally:
            if alone:
                end()

    def copy(self, *given: Any, **named: Any) -> Any:
        """Begin psycopg's COPY, which takes several steps."""
        if self.connection.autocommit:
            raise NotSupportedError("COPY needs atomic(): it keeps a connection")
        with self.connection.begun() as connection:
            return connection.cursor().copy(*given, **named)

    def close(self) -> None:
        """End it; a server's cursor also there, unless its transaction has ended already."""
        if self._found is not None:
            (self._found._close if self._is_stale() else self._found.close)()

    @property
    def _query(self) -> Any:
        return getattr(self._found, "_query", None)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._answer())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        if self._found is None and name in {"description", "rowcount"}:
            return None if name == "description" else -1
        return getattr(self._answer(), name)

    def _answer(self) -> psycopg.Cursor[Any]:
        if self._found is None:
            raise ProgrammingError("the cursor has executed nothing yet")
        if self._is_stale():
            raise ProgrammingError("the cursor's transaction has ended")
        return self._found

    def _is_stale(self) -> bool:
        """Return whether its connection may be in a transaction of another thread's by now."""
        return self._block is not self.connection.block and self._block is not None


class Features(features.DatabaseFeatures):
    """What Django would try out by making tables, is known."""

    supports_transactions = True


class Operations(operations.DatabaseOperations):
    """What needs no server here."""

    def compose_sql(self, statement: str, params: Any) -> str:
        """Write parameters into a statement."""
        adapters = self.connection.adapters
        return statement % tuple(sql.Literal(one).as_string(adapters) for one in params)

    def execute_sql_flush(self, sql_list: list[str]) -> None:  # noqa: ARG002
        """Empty all shards of a test run, for `flush`; raises ImproperlyConfigured elsewhere."""
        fleet.empty()


class Introspection(introspection.DatabaseIntrospection):
    """What is there, as far as it is asked for one shard."""

    def django_table_names(self, *_: Any, **__: Any) -> list[str]:
        """Give none: nothing but `flush` asks, which empties all shards together."""
        return []


class SchemaEditor(schema.DatabaseSchemaEditor):
    """Writes statements of which those outside a transaction can run again."""

    sql_create_index_concurrently = (
        schema.DatabaseSchemaEditor.sql_create_index_concurrently.replace(
            "CONCURRENTLY", "CONCURRENTLY IF NOT EXISTS"
        )
    )


class DatabaseWrapper(base.DatabaseWrapper):
    """One shard, for one thread."""

    SchemaEditorClass = SchemaEditor
    features_class = Features
    introspection_class = Introspection
    ops_class = Operations
    creation_class = DatabaseCreation
    connection: Any

    @property
    def adapters(self) -> Any:
        """What psycopg has registered for Django."""
        return psycopg_any.get_adapters_template(settings.USE_TZ, self.timezone)

    def configure(self, connection: psycopg.Connection[Any]) -> None:
        """Make a new connection of the router's what Django expects."""
        connection._adapters = AdaptersMap(self.adapters)  # as of psycopg's `context`
        self._configure_connection(connection)  # Django's, for pools

    @cached_property
    def pg_version(self) -> int:
        """Give the version of the shard's server; few features ask."""
        number = self.settings_dict["OPTIONS"]["number"]
        with fleet.database().shard(number=number) as connection:
            return connection.info.server_version

    def get_connection_params(self) -> dict[str, Any]:
        """Give none: the router has them."""
        return {}

    def get_new_connection(self, conn_params: dict[str, Any]) -> ShardConnection:  # noqa: ARG002
        """Give what connects when there is something to run."""
        self.isolation_level = psycopg_any.IsolationLevel.READ_COMMITTED
        return ShardConnection(self)

    def init_connection_state(self) -> None:
        """Leave a connection's state to `configured`, and the server's version to shardctl."""

    def prepare_database(self) -> None:
        """Refuse `migrate --database`, which would make tables of its own."""
        raise NotSupportedError(
            "shards have no migrations of Django's: run `manage.py shardmigrations APP`, and then "
            "`shardctl migrate`"
        )

    def create_cursor(self, name: str | None = None) -> ShardCursor:
        """Give a cursor; outside `atomic()` one with a name is an ordinary one."""
        assert self.connection is not None  # noqa: S101  # Django has just connected
        return self.connection.cursor(name)

    def ensure_timezone(self) -> bool:
        """Leave connections the time zone of the process's settings."""
        return False

    def check_constraints(self, table_names: Any = None) -> None:
        """Check those that wait for the end of the transaction, if it has done anything."""
        if self.connection.lent is not None:
            super().check_constraints(table_names)

    def _savepoint(self, sid: str) -> None:
        if self.connection.lent is None:
            self.connection.savepoints.append(sid)
        else:
            super()._savepoint(sid)

    def _savepoint_rollback(self, sid: str) -> None:
        self._unless_waiting(super()._savepoint_rollback, sid, 1)

    def _savepoint_commit(self, sid: str) -> None:
        self._unless_waiting(super()._savepoint_commit, sid, 0)

    def _unless_waiting(self, end: Callable[[str], None], sid: str, kept: int) -> None:
        waiting = self.connection.savepoints
        if sid in waiting:
            del waiting[waiting.index(sid) + kept :]
        else:
            end(sid)

    def is_usable(self) -> bool:
        """Say yes: a connection that has ended is never lent."""
        return self.connection is not None and not self.connection.closed

    def commit(self) -> None:
        """Commit; raises ShardMoved."""
        with self._clean_after_move():
            super().commit()

    def rollback(self) -> None:
        """Roll back; raises ShardMoved."""
        with self._clean_after_move():
            super().rollback()

    @contextmanager
    def _clean_after_move(self) -> Iterator[None]:
        try:
            yield
        except ShardMoved:  # which Django does not know as an end of the transaction
            self.errors_occurred = self.needs_rollback = False
            self.run_on_commit: list[Any] = []
            raise
