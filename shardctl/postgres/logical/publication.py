"""The publication of a move, made in one statement, and dropped; and what its tables are lent.

Commit it before the slot is made. A worker that meets changes from before its publication fails
permanently on PostgreSQL 15 and 16, and on 18 it left out a row without an error.

PostgreSQL refuses UPDATE and DELETE of a published table without a replica identity. REPLICA
IDENTITY FULL needs no key: the stream has whole old rows.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import psycopg
from psycopg import sql

from shardctl.errors import Incomplete, Refused
from shardctl.postgres import blocking, queries
from shardctl.postgres.patient import END_IT, each_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardctl.postgres.connection import Connection

Table = tuple[str, str]
"""A schema and a table in it."""

_QUERIES = queries.load("shardctl.postgres.logical", "publication.sql")
_LOCK_TIMEOUT_S = 10.0

_PATIENCE_S = 60.0


def tables(session: Connection, schemas: Sequence[str]) -> list[Table]:
    """List what a publication of these schemas has to name.

    A partitioned table is published as its partitions, and not as itself: a TRUNCATE of one
    partition is in the stream then. It is listed and they are not: a partition that is made later
    stops the worker on the target, where that is missing, instead of being left out.
    """
    found = session.execute(_QUERIES["tables"], {"schemas": list(schemas)})
    return [(schema, name) for schema, name in found]


def create(session: Connection, name: str, tables: Sequence[Table], *, move: str) -> None:
    """Publish these tables, and of `shardctl.stream` the rows of `move`.

    It waits for VACUUM and CREATE INDEX CONCURRENTLY on a table, a moment for each, and for no
    reader or writer. Raises publication_blocked.
    """
    listed = [sql.SQL("ONLY {}").format(sql.Identifier(*table)) for table in tables]
    own = sql.SQL("shardctl.stream WHERE (move = {})").format(sql.Literal(move))
    statement = _QUERIES["create"].format(
        lock_timeout=sql.Literal(f"{int(_LOCK_TIMEOUT_S * 1000)}ms"),
        name=sql.Identifier(name),
        tables=sql.SQL(", ").join([*listed, own]),
    )
    try:
        queries.rows_of_last(session, statement)
    except psycopg.errors.LockNotAvailable as error:
        schemas = sorted({"shardctl", *(schema for schema, _ in tables)})
        holding = blocking.holding(session, schemas, but=blocking.CLIENTS)
        raise Refused(
            "publication_blocked",
            f"publication {name} could not be made within {_LOCK_TIMEOUT_S:g} s: "
            + ("; ".join(holding[:3]) or "VACUUM, CREATE INDEX CONCURRENTLY or DDL held a table"),
            hint="wait until that ends, then run `shardctl moves resume`",
        ) from error


def oid(session: Connection, name: str) -> int | None:
    """Give the OID of the publication of this name; None where there is none."""
    found = session.execute(_QUERIES["oid"], {"name": name}).fetchone()
    return None if found is None else int(found[0])


def listed(session: Connection, name: str) -> list[Table]:
    """List the tables of a publication but `shardctl.stream`; none where it is missing."""
    return [(s, t) for s, t in session.execute(_QUERIES["listed"], {"name": name})]


def drop(session: Connection, name: str) -> None:
    """Drop the publication, if there is one; its tables are not locked."""
    session.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(name)))


class Identity(NamedTuple):
    """A table without a replica identity; `was` is its `relreplident`."""

    schema: str
    table: str
    was: str


def missing_identities(session: Connection, schemas: Sequence[str]) -> tuple[Identity, ...]:
    """List the tables of schemas by whose rows a stream cannot name what clients change."""
    found = session.execute(_QUERIES["missing_identities"], {"schemas": list(schemas)})
    return tuple(Identity(*row) for row in found)


def lend_identities(session: Connection, tables: Sequence[Identity]) -> None:
    """Let the stream have whole old rows of these tables; repeatable. Raises identity_blocked."""
    _change(session, tables, full=True)


def take_identities_back(session: Connection, tables: Sequence[Identity]) -> None:
    """Give tables what they had, where they are published no more; repeatable.

    Raises identity_blocked.
    """
    _change(session, tables, full=False)


def _change(session: Connection, tables: Sequence[Identity], *, full: bool) -> None:
    """Alter one after the other: each waits for all who use it, a moment at a time.

    NOTHING means the same as an index that was dropped.
    """
    schemas, names, had = zip(*tables, strict=True) if tables else ((), (), ())
    given = {"schemas": list(schemas), "tables": list(names), "had": list(had), "full": full}
    found = session.execute(_QUERIES["identities"], given).fetchall()
    statements = {
        oid: sql.SQL("ALTER TABLE ONLY {} REPLICA IDENTITY {}").format(
            sql.Identifier(schema, table),
            sql.SQL("FULL" if full else "DEFAULT" if was == "d" else "NOTHING"),
        )
        for oid, schema, table, was in found
    }
    named = {oid: (schema, table) for oid, schema, table, _ in found}
    if left := each_table(session, named, statements, time.monotonic() + _PATIENCE_S):
        raise Incomplete(
            "identity_blocked",
            f"replica identities could not be changed within {_PATIENCE_S:g} s: {left}",
            hint=END_IT,
        )
