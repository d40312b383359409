"""What the source holds that a stream would leave behind, or that writes behind its fence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.meter import listed
from shardctl.moves import cross_schema
from shardctl.moves.preflight import schemas
from shardctl.moves.refusals import SourceUnfit
from shardctl.provision.refusals import table_shadowed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.errors import ShardctlError
    from shardctl.moves.preflight.subject import Context


def judge(context: Context) -> Iterator[ShardctlError]:
    """Find what keeps a slot from being made, is not streamed, or means something else there."""
    node, there = context.plan.source, context.need(schemas.look)
    yield from unfenced(context)
    if there.referring.total:
        yield SourceUnfit(
            node,
            "oid_columns",
            "it has columns that hold OIDs of objects (regclass and its kind), which mean other "
            f"objects on another server: {there.referring}",
            hint="keep names instead (ALTER TABLE ... ALTER COLUMN ... TYPE text), or give "
            "--method clone",
        )


def unfenced(context: Context) -> Iterator[ShardctlError]:
    """Find what would write behind the fence or be lost: it may come about until the cutover."""
    node, there = context.plan.source, context.need(schemas.look)
    yield from schemas.prepared(node, there, why="a slot cannot be made before they end")
    if there.unlogged.total:
        yield SourceUnfit(
            node,
            "unlogged",
            "unlogged tables or sequences are not in the WAL and would arrive empty: "
            f"{there.unlogged}",
            hint="ALTER TABLE (or SEQUENCE) ... SET LOGGED, or drop them",
        )
    if there.large_objects:
        yield SourceUnfit(
            node,
            "large_objects",
            f"it has {there.large_objects} large objects of {there.large_objects_of}, which "
            "belong to no schema and which no stream carries",
            hint="keep them as bytea in the shards' tables, and lo_unlink them (see vacuumlo)",
        )
    if there.subscriptions:
        shown = [f"{name} in database {database}" for name, database in there.subscriptions]
        yield SourceUnfit(
            node,
            "subscriptions",
            f"it has subscriptions: {listed(shown)}; those write behind a fence",
            hint="drop them, or disable those that do not write into moved shards",
        )
    if there.crossings.total:
        yield cross_schema.refusal(node, there.crossings)
    for schema, table in there.shadows:
        yield table_shadowed(node, schema, table)


def notes(context: Context) -> Iterator[str]:
    """Say which subscribers of others lose the shards."""
    if names := context.need(schemas.look).publications:
        yield (
            f"publications hold tables of moved shards: {listed(names)}; their subscribers have to "
            f"follow to node {context.plan.target}"
        )
