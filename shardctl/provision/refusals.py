"""Why the fleet must not be changed: ownership, foreign schemas, changed files, shadows; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.errors import ShardctlError
from shardctl.topology import names, ranges
from shardctl.topology.model import NodeName

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardctl.provision.observe import Observed
    from shardctl.state.migrations import Migration
    from shardctl.topology.model import Topology


class OwnershipDiffers(ShardctlError):
    """The map in the databases gives shards to other nodes than the topology does."""

    def __init__(self, witness: NodeName, node: str, wanted: str, shards: Sequence[int]) -> None:
        super().__init__(
            f"shards {ranges.of(shards)}: the map on node {witness} gives them to {node}, "
            f"the topology to {wanted}",
            hint="the databases say who owns a shard: take the newest topology file; "
            "to give shards a new node, use `shardctl move-shards`",
        )
        self.shards = tuple(shards)


class SchemaInTheWay(ShardctlError):
    """A schema stands where a shard would be made."""

    def __init__(self, node: NodeName, what: str, schemas: Sequence[str], *, hint: str) -> None:
        shown = ", ".join(schemas[:5]) + (", ..." if len(schemas) > 5 else "")
        super().__init__(f"node {node}: {what}: {shown} ({len(schemas)})", hint=hint)
        self.schemas = tuple(schemas)


class ShardLost(ShardctlError):
    """A shard that was made and is no longer there; it is not made anew, empty, in silence."""

    def __init__(self, node: NodeName, shards: Sequence[int]) -> None:
        super().__init__(
            f"node {node}: the schemas of shards {ranges.of(shards)} were made and are gone",
            hint="restore them from a backup; or, to begin with empty ones, delete the shards' "
            "rows from shardctl.map and shardctl.migration on that node and run init again",
        )
        self.shards = tuple(shards)


class MigrationChanged(ShardctlError):
    """A migration file is not what ran under its name."""

    def __init__(self, node: NodeName, migration: Migration, ran: str, shards: list[int]) -> None:
        super().__init__(
            f"{migration.file}: changed after it ran in shards {ranges.of(shards)} of node {node} "
            f"(SHA-256 {migration.checksum[:12]}, ran as {ran[:12]})",
            hint="put the file back as it was, and write what is new into a new migration",
        )


class TableShadowed(ShardctlError):
    """A table behind the shards' on the search_path has the name of a shard's table."""

    def __init__(self, node: str, schema: str, table: str) -> None:
        super().__init__(
            f"node {node}: table {schema}.{table} has the name of a table in the shards",
            hint="rename or drop it, or take its schema off the search_path: "
            "statements meant for a shard would reach it once that shard has moved",
        )


def refusals(
    topology: Topology,
    observed: Sequence[Observed],
    migrations: Sequence[Migration],
    *,
    adopt: bool,
) -> list[ShardctlError]:
    """List all reasons not to change the fleet; `adopt` allows schemas that others made."""
    stale = _ownership(topology, observed)
    problems: list[ShardctlError] = [*stale, *_shadowed(observed)]
    disputed = {shard for error in stale for shard in error.shards}
    for one in observed:
        problems += _in_the_way(topology, one, observed, disputed, adopt=adopt)
        problems += _changed(one, migrations)
    return problems


def _ownership(topology: Topology, observed: Sequence[Observed]) -> list[OwnershipDiffers]:
    """Compare every map with the topology: a stale file must not bring a shard to life."""
    differing: dict[tuple[NodeName, str, str], list[int]] = {}
    owners = topology.owners()
    for one in observed:
        for shard, node in one.map.items():
            wanted = owners.get(shard, NodeName("no node"))
            if node != wanted:
                differing.setdefault((one.node, node, wanted), []).append(shard)
    told: set[tuple[str, str, tuple[int, ...]]] = set()
    errors: list[OwnershipDiffers] = []
    for (witness, owner, right), shards in differing.items():
        if (owner, right, tuple(shards)) not in told:
            told.add((owner, right, tuple(shards)))
            errors.append(OwnershipDiffers(witness, owner, right, shards))
    return errors


def _in_the_way(
    topology: Topology,
    one: Observed,
    observed: Sequence[Observed],
    disputed: set[int],
    *,
    adopt: bool,
) -> list[ShardctlError]:
    """Find schemas that forbid making this node's shards: foreign, retired, or live elsewhere.

    Disputed shards have their error already.
    """
    owned = {topology.schema(s): s for s in topology.nodes[one.node].shards if s not in disputed}
    foreign = [n for n, s in owned.items() if n in one.schemas and s not in one.map]
    missing = {name for name in owned if name not in one.schemas}
    # A retired name may have lost the end of its schema's name: look through the few of them.
    retired = {
        name: schema
        for name in one.schemas
        for schema in (missing if "__retired_" in name else ())
        if names.retired_of(schema, name)
    }
    errors: list[ShardctlError] = []
    # A shard's own map row is written by the transaction that makes its schema.
    gone = missing - set(retired.values())
    lost = sorted(owned[name] for name in gone if one.map.get(owned[name]) == one.node)
    if lost:
        errors.append(ShardLost(one.node, lost))
    if foreign and not adopt:
        errors.append(
            SchemaInTheWay(
                one.node,
                "schemas that shardctl did not make stand where shards belong",
                foreign,
                hint="drop or rename them, or give --adopt to take them over with what is in them",
            )
        )
    if retired:
        errors.append(
            SchemaInTheWay(
                one.node,
                "retired copies stand where the topology wants shards made anew",
                sorted(retired),
                hint="these shards have moved away: take the newest topology file",
            )
        )
    for other in observed:
        twice = sorted(name for name in missing if name in other.schemas)
        if other.node != one.node and twice:
            errors.append(
                SchemaInTheWay(
                    other.node,
                    f"shards that the topology gives to {one.node} live here",
                    twice,
                    hint="check the topology, or drop these schemas if nothing uses them",
                )
            )
    return errors


def _changed(one: Observed, migrations: Sequence[Migration]) -> list[ShardctlError]:
    by_name = {migration.name: migration for migration in migrations}
    return [
        MigrationChanged(one.node, by_name[file], checksum, sorted(shards))
        for (file, checksum), shards in one.migrations.items()
        if file in by_name and by_name[file].checksum != checksum
    ]


def _shadowed(observed: Sequence[Observed]) -> list[ShardctlError]:
    return [
        TableShadowed(one.node, schema, table) for one in observed for schema, table in one.shadows
    ]
