"""What the source contains: objects that a fence does not stop, or that a clone duplicates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from psycopg import sql

from shardctl.ids.generator import quote_identifier
from shardctl.meter import SHOWN, listed
from shardctl.moves import cross_schema
from shardctl.moves import plan as planning
from shardctl.moves.confirm_sessions import QUERIES as CONFIRM
from shardctl.moves.cross_schema import Some, some
from shardctl.moves.preflight.subject import QUERIES
from shardctl.moves.refusals import SourceUnfit
from shardctl.postgres import catalog, queries
from shardctl.postgres.connection import NodeUnavailable, connect
from shardctl.provision.refusals import table_shadowed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shardctl.errors import ShardctlError
    from shardctl.moves.plan import MovePlan
    from shardctl.moves.preflight.subject import Context
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import NodeName

_WITH_DATABASE_COLLATIONS = 150_000
_KEYWORDS = ("all", "sameuser", "samerole", "samegroup", "replication")  # of pg_hba.conf


@dataclass(frozen=True, slots=True)
class Version:
    """A collation's recorded version; `actual` is the system's."""

    name: str
    recorded: str
    actual: str | None


@dataclass(frozen=True, slots=True)
class Contents:
    """What the source contains in the moved schemas and outside shards."""

    prepared: tuple[tuple[str, str], ...]
    """Names of prepared transactions and their databases."""
    unlogged: Some
    large_objects: int
    large_objects_of: str
    """The roles that own them."""
    subscriptions: tuple[tuple[str, str], ...]
    """Names and databases."""
    publications: tuple[str, ...]
    referring: Some
    """Columns of moved tables that hold OIDs of objects (`regclass` and the like)."""
    shadows: tuple[tuple[str, str], ...]
    crossings: Some
    """Cross-schema dependencies: the object, and on what it depends."""
    tables: Some
    """Tables and sequences outside shards."""
    databases: Mapping[str, Some]
    """The same for other databases that have any."""
    closed: Mapping[str, str]
    """Databases that shardctl could not connect to, and why."""
    collations: tuple[Version, ...]


def look(context: Context) -> Contents:
    """Query the source; a fixed number of queries for each of its databases that are copied."""
    topology, plan, session = context.topology, context.plan, context.session
    moved = {"schemas": list(plan.schemas), "shown": SHOWN}
    databases, closed = ({}, {}) if context.streams else _other_databases(context)
    large_objects, large_objects_of = queries.one(session, QUERIES["large_objects"])
    return Contents(
        prepared=tuple(session.execute(QUERIES["prepared"]).fetchall()),
        unlogged=some(session.execute(QUERIES["unlogged"], moved).fetchall()),
        large_objects=large_objects,
        large_objects_of=large_objects_of,
        subscriptions=tuple(session.execute(QUERIES["subscriptions"], moved).fetchall()),
        publications=tuple(n for (n,) in session.execute(QUERIES["publications"], moved)),
        referring=some(session.execute(_referring(plan)).fetchall()),
        shadows=catalog.read_shadows(session, topology, plan.schemas),
        crossings=cross_schema.dependencies(
            session, plan.schemas, planning.leaving(topology, plan)
        ),
        tables=tables(session, [topology.schema(shard) for shard in context.source.shards]),
        databases=databases,
        closed=closed,
        collations=_collations(session),
    )


def tables(session: Connection, known: Sequence[str]) -> Some:
    """List a database's tables and sequences outside `known` and retired schemas."""
    return some(
        session.execute(QUERIES["tables"], {"known": list(known), "shown": SHOWN}).fetchall()
    )


def _other_databases(context: Context) -> tuple[dict[str, Some], dict[str, str]]:
    """Query the source's other databases; return those with data, and the unreachable ones."""
    node, database, purpose = context.source, context.topology.database, context.purpose
    found: dict[str, Some] = {}
    closed: dict[str, str] = {}
    for (name,) in context.session.execute(QUERIES["databases"]).fetchall():
        try:
            with connect(
                node, database, purpose=purpose, dbname=name, autocommit=True, observing=True
            ) as other:
                there = tables(other, [])
        except NodeUnavailable as error:
            closed[name] = error.reason
        else:
            if there.total:
                found[name] = there
    return found, closed


def judge(context: Context) -> Iterator[ShardctlError]:
    """Refuse what would bypass the fence, be lost, or exist twice afterwards."""
    node, there = context.plan.source, context.need(look)
    yield from unfenced(context)
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
    if not context.plan.options.duplicate_shared:
        yield from _shared(node, there)
    for name, reason in there.closed.items():
        yield SourceUnfit(
            node,
            "database_closed",
            f"cannot connect to database {name}, which a clone would copy: {reason}",
            hint=way_in(context.topology.database.user, name),
        )


def way_in(user: str, database: str) -> str:
    """Return the hint for a database that a role cannot connect to: pg_hba.conf, and a grant."""
    named = f'"{database}"' if database in _KEYWORDS else database
    return (
        f"add `host {named} {user} ADDRESS scram-sha-256` to pg_hba.conf there and reload, and run "
        f"GRANT CONNECT ON DATABASE {quote_identifier(database)} TO {quote_identifier(user)}"
    )


def unfenced(context: Context) -> Iterator[ShardctlError]:
    """Refuse what would bypass the fence or be lost; it may appear until the cutover."""
    node, there = context.plan.source, context.need(look)
    yield from _unbound(node, there)
    if there.crossings.total:
        yield cross_schema.refusal(node, there.crossings)
    for schema, table in there.shadows:
        yield table_shadowed(node, schema, table)


def notes(context: Context) -> Iterator[str]:
    """Report what the operator should know of the contents besides refusals."""
    topology, plan, there = context.topology, context.plan, context.need(look)
    if there.publications:
        yield (
            f"publications have tables of moved shards: {listed(there.publications)}; point their "
            f"subscribers to node {plan.target} after the move"
        )
    if there.referring.total:
        yield (
            f"columns hold OIDs of objects (regclass and the like): {there.referring}; the clone "
            f"keeps all OIDs, so they stay valid on node {plan.target}, except those of objects in "
            "shards that stay: prune drops their copies there"
        )
    if plan.options.duplicate_shared:
        both = "will be on both nodes and change independently (--duplicate-shared): "
        if there.tables.total:
            yield f"tables of database {topology.database.name} {both}{there.tables}"
        for name, some in there.databases.items():
            yield f"tables of database {name} {both}{some}"


def _unbound(node: NodeName, there: Contents) -> Iterator[SourceUnfit]:
    yield from prepared(node, there, why="the clone would have them, too")
    if there.unlogged.total:
        yield SourceUnfit(
            node,
            "unlogged",
            f"unlogged tables or sequences would be empty on the clone: {there.unlogged}",
            hint="run ALTER TABLE (or SEQUENCE) ... SET LOGGED, or drop them",
        )
    if there.large_objects:
        yield SourceUnfit(
            node,
            "large_objects",
            f"it has {there.large_objects:,} large objects of {there.large_objects_of}, which "
            "belong to no shard and which no fence protects",
            hint="store them as bytea in the shards' tables, then remove them with lo_unlink or "
            "vacuumlo",
        )
    if there.subscriptions:
        shown = [f"{name} in database {database}" for name, database in there.subscriptions]
        yield SourceUnfit(
            node,
            "subscriptions",
            f"it has subscriptions: {listed(shown)}; they bypass the fence, and the clone would "
            "consume their changes",
            hint="drop them, or disable those that do not write into moved shards",
        )


def prepared(node: NodeName, there: Contents, *, why: str) -> Iterator[SourceUnfit]:
    """Refuse prepared transactions; `why` says what they would do."""
    if there.prepared:
        shown = [f"{gid!r} in database {database}" for gid, database in there.prepared]
        yield SourceUnfit(
            node,
            "prepared_transactions",
            f"it has prepared transactions: {listed(shown)}",
            hint=f"run COMMIT PREPARED or ROLLBACK PREPARED: {why}",
        )


def _shared(node: str, there: Contents) -> Iterator[SourceUnfit]:
    """Refuse data that would exist on both nodes afterwards and diverge."""
    hint = "move it elsewhere or drop it, or give --duplicate-shared to keep it on both nodes"
    if there.tables.total:
        yield SourceUnfit(
            node, "shared_tables", f"it has tables outside the shards: {there.tables}", hint=hint
        )
    if there.databases:
        shown = [f"{name} ({some})" for name, some in there.databases.items()]
        yield SourceUnfit(
            node, "other_databases", f"it has other databases with data: {listed(shown)}", hint=hint
        )


def _referring(plan: MovePlan) -> sql.Composed:
    return CONFIRM["referring_columns"].format(
        referring=CONFIRM["referring"],
        schemas=sql.SQL(", ").join(map(sql.Literal, plan.schemas)),
        shown=sql.Literal(SHOWN),
    )


def _collations(session: Connection) -> tuple[Version, ...]:
    found = session.execute(QUERIES["collations"]).fetchall()
    if session.info.server_version >= _WITH_DATABASE_COLLATIONS:
        rows = session.execute(QUERIES["database_collations"]).fetchall()
        found += [(f"database {name}", recorded, actual) for name, recorded, actual in rows]
    return tuple(Version(*row) for row in found)
