"""How the poolers' guards log in to a node, to query its shards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from psycopg.conninfo import make_conninfo

from shardctl.postgres import connection

if TYPE_CHECKING:
    from shardctl.topology.model import Database, Node


def dsn(node: Node, database: Database) -> str:
    """Return the connection string, without a password, for a pooler's host."""
    # A guard uses shardctl's options, not the defaults of the role and the database.
    given = dict(database.options) | {"options": connection.options(database)}
    return make_conninfo(
        "",
        **given,
        # Until it opens, a target rejects connections through its Unix socket.
        host=node.host if node.pooler_host.startswith("/") else node.pooler_host,
        port=node.port,
        dbname=database.name,
        user=database.user,
    )
