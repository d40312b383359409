"""The source's server: its version, role, parameters and size, and the login role's rights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl.ids.generator import quote_identifier
from shardctl.moves.plan import SourceUnfit
from shardctl.moves.preflight.subject import QUERIES
from shardctl.postgres import OLDEST_MAJOR, queries

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

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

MONITOR = "pg_monitor"

_FUNCTIONS = (
    # To promote, to accept connections, and to read the files of which the clone's are made.
    "pg_promote(boolean,integer)",
    "pg_reload_conf()",
    "pg_show_all_file_settings()",
    "pg_hba_file_rules()",
    "pg_ls_dir(text)",
    "pg_ls_dir(text,boolean,boolean)",
    "pg_read_binary_file(text)",
    "pg_read_file(text,bigint,bigint,boolean)",
    "pg_stat_file(text,boolean)",
)
_VIEWS = ("pg_file_settings", "pg_hba_file_rules")
_TABLES = ("shardctl.cluster", "shardctl.map", "shardctl.move", "shardctl.move_step")


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


def look_for_rights(context: Context) -> tuple[str, ...]:
    """List the rights that the session's role lacks."""
    plan, streams = context.plan, context.streams
    # The owner of a table publishes it, the move's own control table too.
    published = [*plan.schemas, "shardctl"] if streams else []
    owned = published or [context.topology.schema(shard) for shard in context.source.shards]
    found = context.session.execute(
        QUERIES["rights"],
        {
            "schemas": [*{*owned, *plan.schemas}],
            "terminate": plan.options.terminate,
            "functions": [] if streams else list(_FUNCTIONS),
            "views": [] if streams else list(_VIEWS),
            "tables": list(_TABLES),
            "published": published,
            "streams": streams,
            "replication_user": context.topology.database.replication_user,
        },
    )
    return tuple(what for (what,) in found)


def judge_rights(context: Context) -> Iterator[SourceUnfit]:
    """Refuse a role without these rights, with the statements that grant them."""
    node, user, missing = (
        context.plan.source,
        context.topology.database.user,
        context.need(look_for_rights),
    )
    if missing:
        yield SourceUnfit(
            node,
            "rights",
            f"{user} lacks rights that a move needs: {'; '.join(missing)}",
            hint=f"run on node {node} as a superuser: {'; '.join(grants(user, missing))}",
        )


def grants(user: str, missing: Sequence[str]) -> list[str]:
    """Return the statements that grant rights; rights on applications' objects in words.

    >>> grants("ops", ["REPLICATION", "pg_monitor", "pg_read_server_files (for /etc/hba)"])
    ['ALTER ROLE "ops" REPLICATION', 'GRANT pg_monitor, pg_read_server_files TO "ops"']
    >>> grants("ops", ["EXECUTE on pg_ls_dir(text)", "SELECT on table shard0.photos and 3 more"])
    ['GRANT EXECUTE ON FUNCTION pg_ls_dir(text) TO "ops"', 'then grant the other rights to ops']
    """
    role = quote_identifier(user)
    roles = [what.partition(" ")[0] for what in missing if what.startswith("pg_")]
    functions = _named(missing, "EXECUTE on ")
    views = [view for view in _named(missing, "SELECT on ") if view in _VIEWS]
    said = ["REPLICATION"] if "REPLICATION" in missing else []
    statements = [f"ALTER ROLE {role} REPLICATION"] if said else []
    if roles:
        statements.append(f"GRANT {', '.join(roles)} TO {role}")
    if functions:
        statements.append(f"GRANT EXECUTE ON FUNCTION {', '.join(functions)} TO {role}")
    if views:
        statements.append(f"GRANT SELECT ON {', '.join(views)} TO {role}")
    if len(said) + len(roles) + len(functions) + len(views) < len(missing):
        statements.append(f"then grant the other rights to {user}")
    return statements


def _named(missing: Sequence[str], verb: str) -> list[str]:
    return [what.removeprefix(verb) for what in missing if what.startswith(verb)]
