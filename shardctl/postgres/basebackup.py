"""Copy a node by pg_basebackup, which needs nothing but the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.postgres.copier import Copier, Program

if TYPE_CHECKING:
    from shardctl.postgres.clone import Clone
    from shardctl.postgres.connection import Connection
    from shardctl.postgres.source import Source


def program(clone: Clone, source: Source, _: Connection, max_rate: str | None) -> Program:
    """Give the command."""
    argv = [clone.server.binaries.program("pg_basebackup")]
    argv += ["-D", str(clone.copy), "-d", source.conninfo(clone.slot), "--no-password"]
    argv += ["--slot", clone.slot, "--wal-method=stream", "--checkpoint=fast"]
    # Asked for progress, the server sends the total, too.
    argv += ["--progress", "--no-manifest"]
    return Program([*argv, "--max-rate", max_rate] if max_rate else argv)


COPIER = Copier("pg_basebackup", program)
