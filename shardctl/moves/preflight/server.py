"""The source's server: its version, role, parameters and size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl.moves.preflight.subject import QUERIES
from shardctl.moves.refusals import SourceUnfit
from shardctl.postgres import OLDEST_MAJOR, queries

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardctl.moves.preflight.subject import Context
    from shardctl.postgres.connection import Connection

STANDBY_CRITICAL = (
    "max_connections",
    "max_locks_per_transaction",
    "max_prepared_transactions",
    "max_wal_senders",
    "max_worker_processes",
)
"""A standby does not start with lower values than its primary's."""

_SETTINGS = (
    *STANDBY_CRITICAL,
    "archive_mode",
    "config_file",
    "data_directory",
    "dynamic_library_path",
    "max_active_replication_origins",
    "max_logical_replication_workers",
    "max_replication_slots",
    "max_wal_size",
    "synchronous_standby_names",
    "wal_level",
    "wal_retrieve_retry_interval",
)


@dataclass(frozen=True, slots=True)
class Server:
    """The source's server as it is; `bytes` is None where the role may not read it."""

    version_number: int
    version: str
    in_recovery: bool
    bytes: int | None
    settings: Mapping[str, str]

    @property
    def major(self) -> int:
        """The major version."""
        return self.version_number // 10_000

    def number(self, name: str) -> int:
        """Return a parameter that is a number."""
        return int(self.settings[name])


def keep_out(session: Connection, *, seconds: float) -> None:
    """Make a session read-only, and bound its waits for locks."""
    session.execute(QUERIES["read_only"], {"lock_timeout": f"{max(1, int(seconds * 1000))}ms"})


def look(context: Context) -> Server:
    """Query the source's version, role, size and parameters."""
    return read(context.session)


def read(session: Connection) -> Server:
    """Query a server's version, role, size and parameters."""
    number, version, in_recovery, size = queries.one(session, QUERIES["server"])
    settings = session.execute(QUERIES["settings"], {"names": list(_SETTINGS)})
    return Server(number, version, in_recovery, size, {n: value for n, value, _ in settings})


def judge(context: Context) -> Iterator[SourceUnfit]:
    """Refuse a standby, and a server that is too old."""
    node, server = context.source, context.need(look)
    if server.major < OLDEST_MAJOR:
        yield SourceUnfit(
            node.name,
            "too_old",
            f"PostgreSQL {server.version} is too old: shardctl needs {OLDEST_MAJOR} or newer",
            hint=f"upgrade it to PostgreSQL {OLDEST_MAJOR} or newer",
        )
    if server.in_recovery:
        yield SourceUnfit(
            node.name,
            "standby",
            f"{node.host}:{node.port} is a standby",
            hint="set the node's host and port in the topology to those of the primary",
        )


def notes(context: Context) -> Iterator[str]:
    """Report what the new node will lack."""
    if context.need(look).settings.get("archive_mode", "off") != "off":
        yield (
            f"node {context.plan.target} will not archive WAL: set up archiving there, not into "
            f"the archive of node {context.plan.source}"
        )
