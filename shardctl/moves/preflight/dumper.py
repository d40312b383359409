"""pg_dump and pg_restore on shardctl's machine, which copy the structure of moved shards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.moves.preflight import member, server
from shardctl.postgres.logical import clients

if TYPE_CHECKING:
    from shardctl.moves.preflight.subject import Context
    from shardctl.postgres.binaries import Binaries


def look(context: Context) -> Binaries:
    """Find programs that are not older than either server; raises no_pg_dump."""
    return clients.find(max(context.need(server.look).major, context.need(member.look).major))
