"""The source's server: its version, role, parameters and size, and the login role's rights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardctl.ids.generator import quote_identifier
from shardctl.moves.plan import NodeUnfit, SourceUnfit
from shardctl.moves.preflight.subject import QUERIES, Unknown
from shardctl.postgres import OLDEST_MAJOR, queries
from shardctl.postgres.logical import structure

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shardctl.moves.preflight.subject import Context
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import NodeName

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
    "data_directory",
    "dynamic_library_path",
    "max_wal_size",
    "synchronous_standby_names",
)

OLDEST_STREAMED = 15
"""The first major version whose publications can be filtered by rows."""

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
_OF_REVERSES = (
    "pg_replication_origin_advance(text,pg_lsn)",
    "pg_replication_origin_progress(text,boolean)",
)
"""By which a reverse begins where it should."""
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


def require_streams(context: Context) -> None:
    """See that the source's catalogs are those of a version that streams; raises Unknown."""
    if context.need(look).major < OLDEST_STREAMED:
        raise Unknown


def look_for_rights(context: Context) -> tuple[str, ...]:
    """List the rights that the role lacks on the source."""
    plan, streams = context.plan, context.streams
    # The owner of a table publishes it, the move's own control table too.
    published = [*plan.schemas, "shardctl"] if streams else []
    owned = published or [context.topology.schema(shard) for shard in context.source.shards]
    return _lacking(
        context.session,
        schemas=[*{*owned, *plan.schemas}],
        replicates=True,
        terminate=plan.options.terminate,
        functions=[] if streams else list(_FUNCTIONS),
        views=[] if streams else list(_VIEWS),
        tables=list(_TABLES),
        published=published,
        replication_user=context.topology.database.replication_user,
        files=not streams,
    )


def look_for_owners(context: Context) -> tuple[str, ...]:
    """Ask the source which roles own what is moved."""
    return structure.owners(context.session, context.plan.schemas)


def look_for_rights_of_target(context: Context) -> tuple[str, ...]:
    """List the rights that the role lacks on a target to which shards are streamed."""
    plan = context.plan
    return _lacking(
        context.member,
        schemas=["shardctl"],
        replicates=plan.reverse is not None,
        functions=list(_OF_REVERSES) if plan.reverses is not None else [],
        subscribes=True,
        owners=list(context.of(look_for_owners) or ()),
    )


def _lacking(session: Connection, **given: Any) -> tuple[str, ...]:
    asked: dict[str, Any] = {
        **{name: [] for name in ("functions", "views", "tables", "published", "owners")},
        **dict.fromkeys(("terminate", "subscribes", "files"), False),
        "replication_user": None,
    }
    return tuple(what for (what,) in session.execute(QUERIES["rights"], asked | given))


def judge_rights(context: Context) -> Iterator[NodeUnfit]:
    """Refuse a role without these rights."""
    return _refused(context, context.plan.source, context.need(look_for_rights))


def judge_rights_of_target(context: Context) -> Iterator[NodeUnfit]:
    """Refuse a role without those on the target."""
    return _refused(context, context.plan.target, context.need(look_for_rights_of_target))


def _refused(context: Context, node: NodeName, missing: Sequence[str]) -> Iterator[NodeUnfit]:
    """Refuse missing rights."""
    user, role = context.topology.database.user, quote_identifier(context.topology.database.user)
    if missing:
        yield NodeUnfit(
            node,
            "rights",
            f"{user} lacks rights that a move needs: {'; '.join(missing)}",
            hint=f"run on node {node} as a superuser GRANT ... TO {role} for each of them, or "
            f"ALTER ROLE {role} REPLICATION, which a target needs for --keep-reverse only",
        )
