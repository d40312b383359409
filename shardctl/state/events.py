"""The audit trail: who changed what on a node, and how it ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.state.cluster import QUERIES
from shardctl.state.lock import who

if TYPE_CHECKING:
    from shardctl.postgres.connection import Connection


def record(connection: Connection, command: str, result: str) -> None:
    """Write an event in the session's transaction (or at once, in autocommit)."""
    connection.execute(
        QUERIES["record_event"], {"who": who(), "command": command, "result": result}
    )
