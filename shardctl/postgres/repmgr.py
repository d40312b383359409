"""What repmgr has written into the databases of a server: its cluster.

repmgr keeps the members of its cluster in the tables of an extension, in a database of the
operator's choice. A clone has them, too.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from shardctl.postgres import queries
from shardctl.postgres.connection import NodeUnavailable, connect

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import Database, Node

_QUERIES = queries.load("shardctl.postgres", "repmgr.sql")


def leave(node: Node, database: Database, session: Connection, *, purpose: str) -> str | None:
    """Let a promoted clone forget its source's cluster; repeatable.

    `session` is with the clone, in autocommit. Gives the database in which there was something
    to forget. What repmgr is made of stays: the node can be registered in a cluster of its own.
    Its host may lack repmgr.
    """
    with _tables(node, database, session, purpose) as found:
        row = found.execute(_QUERIES["leave"]).fetchone() if found is not None else None
        return found.info.dbname if found is not None and row is not None and row[0] else None


@contextmanager
def _tables(
    node: Node, database: Database, session: Connection, purpose: str
) -> Iterator[Connection | None]:
    """Give a session in the database that has repmgr's tables, or None."""
    if session.execute(_QUERIES["here"]).fetchone() is not None:
        yield session
    else:
        yield from _elsewhere(node, database, session, purpose)


def _elsewhere(
    node: Node, database: Database, session: Connection, purpose: str
) -> Iterator[Connection | None]:
    for (name,) in session.execute(_QUERIES["databases"]).fetchall():
        try:
            other = connect(node, database, purpose=purpose, dbname=name, autocommit=True)
        except NodeUnavailable:
            continue  # preflight refuses such a database by itself
        with other:
            if other.execute(_QUERIES["here"]).fetchone() is not None:
                yield other
                return
    yield None
