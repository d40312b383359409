"""The servers of source and target: their versions, roles, parameters and sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl.moves.plan import SourceUnfit
from shardctl.moves.preflight.subject import QUERIES, Unknown
from shardctl.postgres import OLDEST_MAJOR, queries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

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

_SETTINGS = (*STANDBY_CRITICAL, "data_directory", "dynamic_library_path", "max_wal_size")

OLDEST_STREAMED = 15
"""The first major version whose publications can be filtered by rows."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server as it is; `bytes` is None where the role may not read it."""

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
    return _read(context.session)


def look_at_target(context: Context) -> Server:
    """Ask the target of a stream the same."""
    return _read(context.member)


def _read(session: Connection) -> Server:
    settings = session.execute(QUERIES["settings"], {"names": list(_SETTINGS)}).fetchall()
    number, version, in_recovery, size = queries.one(session, QUERIES["server"])
    return Server(number, version, in_recovery, size, dict(settings))


def judge(context: Context) -> Iterator[SourceUnfit]:
    """Refuse a standby, and a server that is too old."""
    node, server = context.source, context.need(look)
    oldest = OLDEST_STREAMED if context.streams else OLDEST_MAJOR
    if server.major < oldest:
        yield SourceUnfit(
            node.name,
            "too_old",
            f"PostgreSQL {server.version} is too old: the move needs {oldest} or newer",
            hint=f"upgrade it to PostgreSQL {oldest} or newer, or use `move-shards --method clone` "
            f"from {OLDEST_MAJOR} on",
        )
    if server.in_recovery:
        yield SourceUnfit(
            node.name,
            "standby",
            f"{node.host}:{node.port} is a standby",
            hint="set the node's host and port in the topology to those of the primary",
        )


def require_streams(context: Context, of: Callable[[Context], Server]) -> None:
    """See that a server's catalogs are those of a version that streams; raises Unknown."""
    if context.need(of).major < OLDEST_STREAMED:
        raise Unknown


def look_for_patroni(context: Context) -> bool | None:
    """Return whether Patroni, which manages the source, is paused; None without one.

    It is seen by its session, which it has as long as it runs. False where the role may not read
    its file.
    """
    at_work, may_read = queries.one(context.session, QUERIES["patroni"])
    if not at_work:
        return None
    (kept,) = queries.one(context.session, QUERIES["patroni_settings"]) if may_read else (None,)
    return bool(kept and kept.get("pause"))


def judge_patroni(context: Context) -> Iterator[SourceUnfit | str]:
    """Refuse one at work: it drops slots that it does not know, and promotes standbys."""
    plan, is_paused = context.plan, context.need(look_for_patroni)
    if is_paused is None:
        return
    if not is_paused and not plan.options.ignore_standby:
        yield SourceUnfit(
            plan.source,
            "patroni_failover",
            "Patroni manages it and is not paused: it may drop the move's replication slot, or "
            "promote a standby, which ignores the fence",
            hint="run `patronictl pause --wait`, and `patronictl resume` after the move; or give "
            "--ignore-standby if failover is disabled in another way",
        )
    yield (
        f"Patroni manages node {plan.source}: run `patronictl resume` after the move, and give "
        f"node {plan.target} a Patroni with a scope of its own"
    )
