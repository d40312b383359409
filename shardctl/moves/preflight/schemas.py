"""Objects that a fence does not stop because others bind them, or that a clone duplicates."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

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
    from collections.abc import Iterator, Mapping, Sequence

    from shardctl.errors import ShardctlError
    from shardctl.moves.preflight.subject import Context
    from shardctl.postgres.connection import Connection

_WITH_DATABASE_COLLATIONS = 150_000


@dataclass(frozen=True, slots=True)
class Version:
    """A collation's recorded version; `actual` is the system's, by the C library or not."""

    name: str
    recorded: str
    actual: str | None
    of_libc: bool


@dataclass(frozen=True, slots=True)
class Contents:
    """What binds the moved schemas to others, and what a clone would have besides shards."""

    shadows: tuple[tuple[str, str], ...] = ()
    crossings: Some = field(default_factory=Some)
    """Cross-schema dependencies: the object, and on what it depends."""
    tables: Some = field(default_factory=Some)
    """Tables and sequences outside shards."""
    databases: Mapping[str, Some] = field(default_factory=dict)
    """The same for other databases that have any."""
    closed: Mapping[str, str] = field(default_factory=dict)
    """Databases that shardctl could not connect to, and why."""
    collations: tuple[Version, ...] = ()
    modules: Mapping[str, str] = field(default_factory=dict)
    """The libraries that functions in C need, each with one of these functions."""


def look(context: Context) -> Contents:
    """Query the source; a fixed number of queries for each of its databases that are copied."""
    topology, plan, session = context.topology, context.plan, context.session
    crossings = ddl.dependencies(session, plan.schemas, planning.leaving(topology, plan))
    found = Contents(catalog.read_shadows(session, topology, plan.schemas), crossings)
    if context.streams:
        return found
    databases: dict[str, Some] = {}
    closed: dict[str, str] = {}
    modules = _modules(session)
    for (name,) in session.execute(QUERIES["databases"]).fetchall():
        try:
            with connect(
                context.source,
                topology.database,
                purpose=context.purpose,
                dbname=name,
                autocommit=True,
                observing=True,
            ) as other:
                there = tables(other, [])
                modules = {**_modules(other), **modules}
        except NodeUnavailable as error:
            closed[name] = error.reason
        else:
            if there.total:
                databases[name] = there
    return replace(
        found,
        tables=tables(session, [topology.schema(shard) for shard in context.source.shards]),
        databases=databases,
        closed=closed,
        collations=_collations(session),
        modules=modules,
    )


def _modules(session: Connection) -> dict[str, str]:
    return dict(session.execute(QUERIES["modules"]).fetchall())


def tables(session: Connection, known: Sequence[str]) -> Some:
    """List a database's tables and sequences outside `known` and retired schemas."""
    return some(
        session.execute(QUERIES["tables"], {"known": list(known), "shown": SHOWN}).fetchall()
    )


def judge(context: Context) -> Iterator[ShardctlError]:
    """Refuse what would bypass the fence."""
    node, there = context.plan.source, context.need(look)
    if there.crossings.total:
        yield ddl.crossing_refused(node, there.crossings)
    for schema, table in there.shadows:
        yield table_shadowed(node, schema, table)


def judge_copied(context: Context) -> Iterator[ShardctlError]:
    """Refuse what would be on both nodes after a clone, or is corrupt there."""
    node, there = context.plan.source, context.need(look)
    for one in there.collations:
        if one.recorded != one.actual:
            yield SourceUnfit(
                node,
                "collation",
                f"{one.name} was created with collation version {one.recorded}, but the system has "
                f"{one.actual or 'none'}: its indexes may be corrupt, on the clone too",
                hint="run REINDEX on its indexes, then ALTER DATABASE (or COLLATION) ... REFRESH "
                "COLLATION VERSION",
            )
    hint = "move it elsewhere or drop it, or give --duplicate-shared to keep it on both nodes"
    if there.tables.total and not context.plan.options.duplicate_shared:
        yield SourceUnfit(
            node, "shared_tables", f"it has tables outside the shards: {there.tables}", hint=hint
        )
    if there.databases and not context.plan.options.duplicate_shared:
        shown = [f"{name} ({some})" for name, some in there.databases.items()]
        yield SourceUnfit(
            node, "other_databases", f"it has other databases with data: {listed(shown)}", hint=hint
        )
    user = context.topology.database.user
    for name, reason in there.closed.items():
        yield SourceUnfit(
            node,
            "database_closed",
            f"cannot connect to database {name}, which a clone would copy: {reason}",
            hint=f"add `host {name} {user} ADDRESS scram-sha-256` to pg_hba.conf there and reload, "
            f"and run GRANT CONNECT ON DATABASE {quote_identifier(name)} TO "
            f"{quote_identifier(user)}",
        )


def _collations(session: Connection) -> tuple[Version, ...]:
    found = session.execute(QUERIES["collations"]).fetchall()
    if session.info.server_version >= _WITH_DATABASE_COLLATIONS:
        rows = session.execute(QUERIES["database_collations"]).fetchall()
        found += [(f"database {name}", *versions) for name, *versions in rows]
    return tuple(Version(*row) for row in found)
