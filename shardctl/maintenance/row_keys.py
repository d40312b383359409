"""Whether the rows of a node's tables can be judged by the keys that are named for them.

A row whose key is unknown must not be judged by its id: a row that was moved by its key keeps
the id that its old shard made, and would go back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.errors import Refused, ShardctlError, together
from shardctl.provision import refusals
from shardctl.state import keys
from shardctl.state.cluster import QUERIES as STATE
from shardctl.topology import ranges

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from shardctl.maintenance.places import Place
    from shardctl.postgres.catalog import Keyed
    from shardctl.postgres.connection import Connection
    from shardctl.state.migrations import Migration
    from shardctl.topology.model import NodeName, ShardId


def migration_unknown(node: NodeName, file: str, shards: Collection[int]) -> Refused:
    """Report a migration that ran and has no file here: it may have named keys."""
    return Refused(
        "migration_unknown",
        f"node {node}: shards {ranges.of(sorted(shards))} ran {file}, which is not in "
        "the migrations' folder",
        hint="use the newest migrations: they name the keys that place each row",
    )


def keys_pending(node: NodeName, migration: Migration, shards: Collection[int]) -> Refused:
    """Report a migration that names keys and has not run."""
    return Refused(
        "keys_pending",
        f"node {node}: {migration.name} names keys and has not run in shards "
        f"{ranges.of(sorted(shards))}",
        hint="run `shardctl migrate`",
    )


def key_column_missing(node: NodeName, shards: Collection[int], table: str, column: str) -> Refused:
    """Report a table without the column that is named as its key."""
    return Refused(
        "key_column_missing",
        f"node {node}: table {table} of shards {ranges.of(sorted(shards))} has no "
        f"column {column}, which is its key",
        hint=f"name its key in a new migration, `-- shardctl: key {table}.COLUMN`, or in "
        "`database.keys`",
    )


def key_type_foreign(node: NodeName, shard: ShardId, table: Keyed) -> Refused:
    """Report a table whose key has a type with casts of another role, which would be run."""
    return Refused(
        "key_type_foreign",
        f"node {node}: shard {shard}: table {table.name}: the type of column {table.column}, which "
        "is its key, belongs to another role than shardctl's and superusers', and so do its casts",
        hint="make the key an integer, text or a uuid, or give the type to the role of shardctl",
    )


def child_unsearched(node: NodeName, shard: ShardId, table: Keyed) -> Refused:
    """Report a partition or an inheritance child whose rows are not in its shard's schema."""
    what = "it is a foreign table" if table.kind == "f" else "it is not in the shard's schema"
    return Refused(
        "child_unsearched",
        f"node {node}: shard {shard}: table {table.named}: its child "
        f"{table.schema}.{table.name} cannot be searched: {what}",
        hint="move it into the shard's schema, or detach it",
    )


def require_ran(session: Connection, places: Sequence[Place], files: Sequence[Migration]) -> None:
    """See that the files which name keys are those that ran in a node's shards.

    Raises migration_changed, migration_unknown, keys_pending, or Problems of several.
    """
    node, shards = places[0].node, {place.shard for place in places if place.shard is not None}
    ran = {
        (file, checksum): there
        for file, checksum, every in session.execute(STATE["migrations"])
        if (there := shards.intersection(every))
    }
    problems = refusals.changed(node, ran, files)
    known = {migration.name: migration for migration in files}
    lacking = {name: set(shards) for name, one in known.items() if keys.lines(one)}
    for (file, _), there in ran.items():
        if file not in known:
            problems.append(migration_unknown(node, file, there))
        elif file in lacking:
            lacking[file] -= there
    problems += [keys_pending(node, known[file], left) for file, left in lacking.items() if left]
    if problems:
        raise together(problems)


def wrong(
    node: NodeName, shards: Mapping[str, ShardId], keyed: Sequence[Keyed]
) -> Iterator[ShardctlError]:
    """Find tables of a node's shards that cannot be judged by their keys."""
    lacking: dict[tuple[str, str], set[ShardId]] = {}
    for one in keyed:
        if not one.present:
            lacking.setdefault((one.named, one.column), set()).add(shards[one.home])
        elif not one.ours:
            yield key_type_foreign(node, shards[one.home], one)
        elif one.kind == "f" or (one.kind == "r" and one.schema not in shards):
            yield child_unsearched(node, shards[one.home], one)
    for (table, column), found in lacking.items():
        yield key_column_missing(node, found, table, column)
