"""The login role's rights on the source: which a move needs, and how to grant them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.ids.generator import quote_identifier
from shardctl.moves.preflight.subject import QUERIES
from shardctl.moves.refusals import SourceUnfit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardctl.moves.preflight.subject import Context

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


def look(context: Context) -> tuple[str, ...]:
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


def judge(context: Context) -> Iterator[SourceUnfit]:
    """Refuse a role without these rights, with the statements that grant them."""
    node, user, missing = context.plan.source, context.topology.database.user, context.need(look)
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
