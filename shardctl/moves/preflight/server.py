"""The source's server: its version and kind, its parameters, and how large it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl.moves.preflight.subject import QUERIES
from shardctl.moves.refusals import SourceUnfit, listed
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
"""A standby does not follow a primary that has more of these."""

_SETTINGS = (
    *STANDBY_CRITICAL,
    "archive_mode",
    "config_file",
    "data_directory",
    "dynamic_library_path",
    "max_replication_slots",
    "max_wal_size",
    "shared_preload_libraries",
    "synchronous_standby_names",
    "wal_level",
)


@dataclass(frozen=True, slots=True)
class Server:
    """The source's server as it is; `bytes` is None to those who may not know."""

    version_number: int
    version: str
    in_recovery: bool
    bytes: int | None
    tablespaces: tuple[str, ...]
    settings: Mapping[str, str]

    @property
    def major(self) -> int:
        """The major version."""
        return self.version_number // 10_000

    def number(self, name: str) -> int:
        """Give a parameter that is a number."""
        return int(self.settings[name])


def keep_out(session: Connection, *, seconds: float) -> None:
    """Let a session change nothing and wait for locks no longer than this."""
    session.execute(QUERIES["read_only"], {"lock_timeout": f"{max(1, int(seconds * 1000))}ms"})


def look(context: Context) -> Server:
    """Ask the source what it is."""
    row = queries.one(context.session, QUERIES["server"])
    number, version, in_recovery, size, tablespaces = row
    settings = context.session.execute(QUERIES["settings"], {"names": list(_SETTINGS)})
    return Server(number, version, in_recovery, size, tuple(tablespaces), dict(settings.fetchall()))


def judge(context: Context) -> Iterator[SourceUnfit]:
    """Refuse a server of which no clone can be made and promoted."""
    node, server = context.source, context.need(look)
    if server.major < OLDEST_MAJOR:
        yield SourceUnfit(
            node.name,
            "too_old",
            f"PostgreSQL {server.version} is too old",
            hint=f"shardctl needs PostgreSQL {OLDEST_MAJOR} or newer",
        )
    if server.in_recovery:
        yield SourceUnfit(
            node.name,
            "standby",
            f"{node.host}:{node.port} is a standby",
            hint="the topology names primaries: give the primary's host and port",
        )
    if server.tablespaces:
        yield SourceUnfit(
            node.name,
            "tablespaces",
            f"it has tablespaces outside its data directory: {listed(server.tablespaces)}",
            hint="a clone has no place for them: move what is in them to pg_default, drop them",
        )


def notes(context: Context) -> Iterator[str]:
    """Say what the new node will lack."""
    if context.need(look).settings.get("archive_mode", "off") != "off":
        yield (
            f"archiving has to be set up on node {context.plan.target}: it does not write into the "
            f"archive of node {context.plan.source}"
        )
