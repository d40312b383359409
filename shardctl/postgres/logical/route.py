"""From which node to which a stream goes, and how its sessions log in to both."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl.errors import Incomplete
from shardctl.postgres import connection, queries

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import Database, Node

PATIENCE_S = 20.0
"""Seconds to wait for sessions to end."""

_QUERIES = queries.load("shardctl.postgres.logical", "route.sql")
_POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class Route:
    """Two nodes, the database in both, and the application_name of all sessions with them."""

    source: Node
    target: Node
    database: Database
    name: str

    def connect(self, node: Node) -> Connection:
        """Log in to a node, in autocommit; raises NodeUnavailable."""
        return connection.connect(node, self.database, purpose=self.name, autocommit=True)

    def conninfo(self, node: Node, settings: Mapping[str, str]) -> str:
        """Write libpq's connection string for programs on this machine, without a password.

        libpq finds that in the passfile, or in the environment, as it does for shardctl.
        """
        database = self.database
        return connection.whole(node, database, self.name, settings, dbname=database.name)


def end_sessions(session: Connection, name: str, *, patience_s: float = PATIENCE_S) -> int:
    """End what an earlier shardctl has left running under this application_name; count it.

    pg_dump, pg_restore and psql go on when the shardctl that began them is killed. `session` itself
    stays, and so does the stream. Raises sessions_left.
    """
    deadline = time.monotonic() + patience_s
    ended = set()
    while found := session.execute(_QUERIES["end_sessions"], {"name": name}).fetchall():
        ended |= {pid for (pid,) in found}
        if time.monotonic() > deadline:
            raise Incomplete(
                "sessions_left",
                f"sessions with application_name {name} did not end within {patience_s:g} s "
                f"(pids {', '.join(str(pid) for (pid,) in found)})",
                hint="see what they wait for (pg_stat_activity), then `shardctl moves resume`",
            )
        time.sleep(_POLL_S)
    return len(ended)
