"""The publication of a move: which tables it has, made in one statement, and dropped.

Commit it before the slot is made. A worker that meets changes from before its publication fails
permanently on PostgreSQL 15 and 16, and on 18 it left out a row without an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from shardctl.errors import Refused
from shardctl.postgres import blocking, queries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardctl.postgres.connection import Connection

Table = tuple[str, str]
"""A schema and a table in it."""

_QUERIES = queries.load("shardctl.postgres.logical", "publication.sql")
_LOCK_TIMEOUT_S = 10.0


def tables(session: Connection, schemas: Sequence[str]) -> list[Table]:
    """List what a publication of these schemas has to name.

    A partitioned table is published as its partitions, and not as itself: a TRUNCATE of one
    partition is in the stream then. It is listed and they are not: a partition that is made later
    stops the worker on the target, where that is missing, instead of being left out.
    """
    return [(schema, name) for schema, name in session.execute(_QUERIES["tables"], _of(schemas))]


def create(
    session: Connection,
    name: str,
    tables: Sequence[Table],
    *,
    move: str,
    lock_timeout_s: float = _LOCK_TIMEOUT_S,
) -> None:
    """Publish these tables, and of `shardctl.stream` the rows of `move`.

    It waits for VACUUM and CREATE INDEX CONCURRENTLY on a table, `lock_timeout_s` for each, and
    for no reader or writer. Raises publication_blocked.
    """
    listed = [sql.SQL("ONLY {}").format(sql.Identifier(*table)) for table in tables]
    own = sql.SQL("shardctl.stream WHERE (move = {})").format(sql.Literal(move))
    statement = _QUERIES["create"].format(
        lock_timeout=sql.Literal(f"{int(lock_timeout_s * 1000)}ms"),
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
            f"publication {name} could not be made within {lock_timeout_s:g} s: "
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


def _of(schemas: Sequence[str]) -> dict[str, list[str]]:
    return {"schemas": list(schemas)}
