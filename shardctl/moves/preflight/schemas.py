"""Objects that a fence does not stop because others bind them, or that a clone duplicates."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shardctl.errors import together
from shardctl.ids.generator import quote_identifier
from shardctl.meter import SHOWN, listed
from shardctl.moves import ddl
from shardctl.moves import plan as planning
from shardctl.moves.ddl import Some, some
from shardctl.moves.plan import SourceUnfit
from shardctl.moves.preflight.subject import QUERIES
from shardctl.postgres import catalog
from shardctl.postgres.connection import NodeUnavailable, connect
from shardctl.provision.refusals import table_shadowed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.errors import ShardctlError
    from shardctl.moves.preflight.subject import Context

_WITH_DATABASE_COLLATIONS = 150_000


class Copied(NamedTuple):
    """What a clone has besides shards."""

    tables: dict[str, Some]
    """Tables and sequences outside shards, by database."""
    closed: dict[str, str]
    """Databases that shardctl could not connect to, and why."""
    modules: dict[str, str]
    """The libraries that functions in C need, each with one of these functions."""


def look(context: Context) -> None:
    """Look for what would bypass the fence; raises SourceUnfit, table_shadowed."""
    plan, session = context.plan, context.session
    shadows = catalog.read_shadows(session, context.topology, plan.schemas)
    found: list[ShardctlError] = [table_shadowed(plan.source, *one) for one in shadows]
    staying = planning.leaving(context.topology, plan)
    if (crossings := ddl.dependencies(session, plan.schemas, staying)).total:
        found.append(ddl.crossing_refused(plan.source, crossings))
    if found:
        raise together(found)


def look_at_copied(context: Context) -> Copied:
    """Ask each database of the source that is copied, the cluster's own included."""
    topology, found = context.topology, Copied({}, {}, {})
    for (name,) in context.session.execute(QUERIES["databases"]).fetchall():
        shards = context.source.shards if name == topology.database.name else ()
        given = {"known": [topology.schema(shard) for shard in shards], "shown": SHOWN}
        try:
            with connect(
                context.source,
                topology.database,
                purpose=context.purpose,
                dbname=name,
                autocommit=True,
                observing=True,
            ) as session:
                there = some(session.execute(QUERIES["tables"], given).fetchall())
                found.modules.update(session.execute(QUERIES["modules"]).fetchall())
        except NodeUnavailable as error:
            found.closed[name] = error.reason
        else:
            found.tables[name] = there
    return found


def judge_copied(context: Context) -> Iterator[ShardctlError]:
    """Refuse what would be on both nodes after a clone."""
    node, there, database = (
        context.plan.source,
        context.need(look_at_copied),
        context.topology.database,
    )
    hint = "move it elsewhere or drop it, or give --duplicate-shared to keep it on both nodes"
    tables = {} if context.plan.options.duplicate_shared else dict(there.tables)
    shared = tables.pop(database.name, Some())
    if shared.total:
        yield SourceUnfit(
            node, "shared_tables", f"it has tables outside the shards: {shared}", hint=hint
        )
    if shown := [f"{name} ({found})" for name, found in tables.items() if found.total]:
        yield SourceUnfit(
            node, "other_databases", f"it has other databases with data: {listed(shown)}", hint=hint
        )
    for name, reason in there.closed.items():
        yield SourceUnfit(
            node,
            "database_closed",
            f"cannot connect to database {name}, which a clone would copy: {reason}",
            hint=f"add `host {name} {database.user} ADDRESS scram-sha-256` to pg_hba.conf there "
            f"and reload, and run GRANT CONNECT ON DATABASE {quote_identifier(name)} TO "
            f"{quote_identifier(database.user)}",
        )


def look_at_collations(context: Context) -> list[tuple[str, str]]:
    """Ask the source by which versions of the C library it sorts, with a collation of each."""
    found = context.session.execute(QUERIES["collations"]).fetchall()
    if context.session.info.server_version >= _WITH_DATABASE_COLLATIONS:
        found += context.session.execute(QUERIES["database_collations"]).fetchall()
    return found
