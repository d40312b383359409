"""Resets the tables of a node to their contents after the migrations."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import psycopg
from psycopg import sql

from shardctl.errors import Refused
from shardctl.libpq import reason_of
from shardctl.postgres import blocking, connection, queries

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import Database, Node

logger = logging.getLogger(__name__)

_QUERIES = queries.load("shardctl.testing", "emptying.sql")
_PURPOSE = "shardctl test fleet"
_LARGE = 2**20
"""Size in bytes above which TRUNCATE, which creates files, is faster than DELETE."""


_PATIENCE_MS = 5000
"""Milliseconds to wait for tables that are in use."""
_READS = ("AccessShareLock",)
"""What only TRUNCATE waits for."""


def not_reset(node: str, reason: str) -> Refused:
    """Report a node whose tables could not be emptied."""
    return Refused(
        "not_reset",
        f"node {node} of the test fleet: cannot empty its tables: {reason}",
        hint="check what the previous test left: an open transaction, a running statement, or a "
        "dropped table that migrations had created",
    )


class Table(NamedTuple):
    """A table with its schema."""

    schema: str
    name: str


class Tables:
    """The tables of one node, and the rows in them that migrations wrote."""

    def __init__(self, node: Node, database: Database) -> None:
        """Read the rows of the migrations; raises NodeUnavailable, not_reset."""
        self._node = node
        self._database = database
        self._kept: dict[Table, bytes] = {}
        self._versions: dict[Table, tuple[int, object]] = {}
        """The number and digest of a table's rows, to detect changes."""
        self._wanted: Sequence[Table] = ()
        """The tables that are being locked."""
        self._truncates = False
        """How they are locked."""
        with self._session() as session:
            self._keep(session)

    def empty(self) -> None:
        """Delete all rows but those of the migrations, and restore these if they changed.

        Terminates sessions that a test left in a transaction with writes. Waits a few seconds for
        other users of the tables. Raises NodeUnavailable, not_reset.
        """
        with self._session() as session:
            try:
                self._empty(session)
            except (psycopg.errors.QueryCanceled, psycopg.errors.LockNotAvailable) as error:
                raise not_reset(self._node.name, self._in_use(session)) from error

    def give(self, schema: str, to: Tables) -> None:
        """Let another node's tables have what this one knows of a schema that has moved there.

        The rows there have other versions: the next `empty` writes those of the migrations again.
        """
        for table in [table for table in self._kept if table.schema == schema]:
            to._kept[table] = self._kept.pop(table)
            self._versions.pop(table, None)

    @contextmanager
    def _session(self) -> Iterator[Connection]:
        """Give a session that empties; raises NodeUnavailable, and not_reset for its errors."""
        try:
            with connection.connect(
                self._node, self._database, purpose=_PURPOSE, autocommit=True
            ) as session:
                session.execute(_QUERIES["prepare"])
                yield session
        except psycopg.Error as error:
            raise not_reset(self._node.name, reason_of(error)) from error

    def _keep(self, session: Connection) -> None:
        filled = [Table(schema, name) for schema, name, _ in session.execute(_QUERIES["filled"])]
        versions = _versions(session, filled)
        self._versions = {table: found for table, found in versions.items() if found[0]}
        for table in self._versions:
            with session.cursor().copy(
                _QUERIES["save"].format(table=sql.Identifier(*table))
            ) as copy:
                self._kept[table] = b"".join(map(bytes, copy))

    def _empty(self, session: Connection) -> None:
        for pid, query, _ in session.execute(_QUERIES["end_left"]).fetchall():
            logger.warning(
                "node %s: ended session %s, which a test left in a transaction: %s",
                self._node.name,
                pid,
                query,
            )
        sizes = {Table(*row): size for *row, size in session.execute(_QUERIES["filled"])}
        filled = [table for table in sizes if table not in self._kept]
        self._clear(session, filled, [table for table in filled if sizes[table] >= _LARGE])
        now = _versions(session, list(self._kept))
        changed = [table for table in self._kept if now[table] != self._versions.get(table)]
        if changed:
            with session.transaction():
                self._clear(session, changed)
                for table in changed:
                    restore = _QUERIES["restore"].format(table=sql.Identifier(*table))
                    with session.cursor().copy(restore) as copy:
                        copy.write(self._kept[table])
                self._versions |= _versions(session, changed)

    def _clear(
        self, session: Connection, tables: Sequence[Table], large: Collection[Table] = ()
    ) -> None:
        """Delete the rows of tables, in one message and one transaction."""
        self._wanted, self._truncates = tables, bool(large)
        if not tables:
            return
        names = {table: sql.Identifier(*table) for table in tables}
        listed = sql.SQL(", ONLY ").join(names.values())
        patience = sql.Literal(_PATIENCE_MS)
        statements = [_QUERIES["lock"].format(patience_ms=patience, tables=listed)]
        statements += [
            _QUERIES["truncate" if table in large else "delete"].format(table=name)
            for table, name in names.items()
        ]
        session.execute(sql.SQL(";\n").join(statements))

    def _in_use(self, session: Connection) -> str:
        """Return who still uses the tables after the wait."""
        schemas = list(dict.fromkeys(table.schema for table in self._wanted))
        holders = blocking.holding(session, schemas, but=() if self._truncates else _READS)
        waited = f"waited {_PATIENCE_MS / 1000:g} s for them"
        return "; ".join([waited, *(holders or ["the sessions that used them have ended since"])])


def _versions(session: Connection, tables: Sequence[Table]) -> dict[Table, tuple[int, object]]:
    """Read the versions of several tables with one query."""
    if not tables:
        return {}
    parts = [
        _QUERIES["versions"].format(position=sql.Literal(position), table=sql.Identifier(*table))
        for position, table in enumerate(tables)
    ]
    found = session.execute(sql.SQL("\nUNION ALL\n").join(parts))
    return {tables[position]: (rows, digest) for position, rows, digest in found}
