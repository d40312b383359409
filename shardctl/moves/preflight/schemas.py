"""What the source holds: things that a fence does not bind, or a clone duplicates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from psycopg import sql

from shardctl.ids.generator import quote_identifier
from shardctl.moves import cross_schema
from shardctl.moves import plan as planning
from shardctl.moves.confirm_sessions import QUERIES as CONFIRM
from shardctl.moves.cross_schema import Some, some
from shardctl.moves.preflight.subject import QUERIES
from shardctl.moves.refusals import SHOWN, SourceUnfit, listed
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
    """A collation whose version is recorded; `actual` is what the system has now."""

    name: str
    recorded: str
    actual: str | None


@dataclass(frozen=True, slots=True)
class Contents:
    """What the source holds, of the moved schemas and of everything beside shards."""

    prepared: tuple[tuple[str, str], ...]
    """Names of prepared transactions and their databases."""
    unlogged: Some
    large_objects: int
    subscriptions: tuple[tuple[str, str], ...]
    """Names and databases."""
    publications: tuple[str, ...]
    referring: Some
    """Columns of moved tables that hold OIDs of objects (`regclass` and its kind)."""
    shadows: tuple[tuple[str, str], ...]
    crossings: Some
    """What binds across a border, and to what."""
    tables: Some
    """Tables and sequences beside the shards."""
    databases: Mapping[str, Some]
    """The same of other databases, of those that have any."""
    closed: Mapping[str, str]
    """Databases that could not be looked into, and why."""
    collations: tuple[Version, ...]


def look(context: Context) -> Contents:
    """Ask the source; a fixed number of questions for each of its databases."""
    topology, plan, session = context.topology, context.plan, context.session
    moved = {"schemas": list(plan.schemas), "shown": SHOWN}
    databases, closed = _other_databases(context)
    (large_objects,) = queries.one(session, QUERIES["large_objects"])
    return Contents(
        prepared=tuple(session.execute(QUERIES["prepared"]).fetchall()),
        unlogged=some(session.execute(QUERIES["unlogged"], moved).fetchall()),
        large_objects=large_objects,
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
    """List tables and sequences of a database but those in `known` schemas and retired ones."""
    return some(
        session.execute(QUERIES["tables"], {"known": list(known), "shown": SHOWN}).fetchall()
    )


def _other_databases(context: Context) -> tuple[dict[str, Some], dict[str, str]]:
    """Look into the source's databases but its own one: those with data, those closed to us."""
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
    """Find what would write behind the fence, be lost, or be there twice afterwards."""
    node, there = context.plan.source, context.need(look)
    yield from unfenced(context)
    for one in there.collations:
        if one.recorded != one.actual:
            yield SourceUnfit(
                node,
                "collation",
                f"{one.name} was made with version {one.recorded} of its collation, and the system "
                f"has {one.actual or 'none'}: indexes may be out of order, on the clone too",
                hint="REINDEX what uses it, then ALTER DATABASE (or COLLATION) ... REFRESH "
                "COLLATION VERSION",
            )
    if not context.plan.options.duplicate_shared:
        yield from _shared(node, there)
    for name, reason in there.closed.items():
        yield SourceUnfit(
            node,
            "database_closed",
            f"database {name} cannot be looked into: {reason}",
            hint="let shardctl log in to it, for a clone would have what is in it: "
            + way_in(context.topology.database.user, name),
        )


def way_in(user: str, database: str) -> str:
    """Say how a role gets into a database of its server: by pg_hba.conf, and by a grant."""
    named = f'"{database}"' if database in _KEYWORDS else database
    return (
        f"a line `host {named} {user} ADDRESS scram-sha-256` in pg_hba.conf and a reload, and "
        f"GRANT CONNECT ON DATABASE {quote_identifier(database)} TO {quote_identifier(user)}"
    )


def unfenced(context: Context) -> Iterator[ShardctlError]:
    """Find what would write behind the fence or be lost: it may come about until the cutover."""
    node, there = context.plan.source, context.need(look)
    yield from _unbound(node, there)
    if there.crossings.total:
        yield cross_schema.refusal(node, there.crossings)
    for schema, table in there.shadows:
        yield table_shadowed(node, schema, table)


def notes(context: Context) -> Iterator[str]:
    """Say what the operator should know of the contents beside refusals."""
    topology, plan, there = context.topology, context.plan, context.need(look)
    if there.publications:
        yield (
            f"publications hold tables of moved shards: {listed(there.publications)}; their "
            f"subscribers have to follow to node {plan.target}"
        )
    if there.referring.total:
        yield (
            f"columns that hold OIDs of objects (regclass and its kind): {there.referring}; the "
            f"clone keeps OIDs, so on node {plan.target} they mean the same objects, and the "
            "comparison takes them as numbers; what they refer to in shards that stay is a copy "
            "there, which prune drops"
        )
    if plan.options.duplicate_shared:
        both = "on both nodes afterwards, each with a life of its own (--duplicate-shared): "
        if there.tables.total:
            yield f"tables of database {topology.database.name} are {both}{there.tables}"
        for name, some in there.databases.items():
            yield f"tables of database {name} are {both}{some}"


def _unbound(node: NodeName, there: Contents) -> Iterator[SourceUnfit]:
    if there.prepared:
        shown = [f"{gid!r} in database {database}" for gid, database in there.prepared]
        yield SourceUnfit(
            node,
            "prepared_transactions",
            f"it has prepared transactions: {listed(shown)}",
            hint="COMMIT PREPARED or ROLLBACK PREPARED them: they could be ended on both nodes",
        )
    if there.unlogged.total:
        yield SourceUnfit(
            node,
            "unlogged",
            f"unlogged tables would arrive empty: {there.unlogged}",
            hint="ALTER TABLE ... SET LOGGED, or drop them",
        )
    if there.large_objects:
        yield SourceUnfit(
            node,
            "large_objects",
            f"it has {there.large_objects} large objects, which belong to no schema and which no "
            "fence binds",
            hint="keep them as bytea in the shards' tables, and lo_unlink them (see vacuumlo)",
        )
    if there.subscriptions:
        shown = [f"{name} in database {database}" for name, database in there.subscriptions]
        yield SourceUnfit(
            node,
            "subscriptions",
            f"it has subscriptions: {listed(shown)}; those write behind a fence, and a clone would "
            "take their changes away from it",
            hint="drop them, or disable those that do not write into moved shards",
        )


def _shared(node: str, there: Contents) -> Iterator[SourceUnfit]:
    """Tell of data that would be on both nodes afterwards and go separate ways."""
    hint = "move it to where it belongs, or drop it; or give --duplicate-shared to have it twice"
    if there.tables.total:
        yield SourceUnfit(
            node, "shared_tables", f"it has tables beside the shards: {there.tables}", hint=hint
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
