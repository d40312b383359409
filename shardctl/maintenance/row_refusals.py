"""Why rows are not moved, and what is left when they were."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.errors import Refused, incomplete_if
from shardctl.topology import ranges

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shardctl.maintenance.misplaced import Table
    from shardctl.topology.model import NodeName, ShardId

_SHOWN = 10


def table_unmovable(node: NodeName, shard: ShardId, table: str, what: Sequence[str]) -> Refused:
    """Report a table whose rows cannot be copied and deleted without another effect."""
    return Refused(
        "table_unmovable",
        f"node {node}: shard {shard}: rows of table {table} cannot be moved: {'; '.join(what)}",
        hint="move its rows by hand, or name the other tables with --table",
    )


def shards_refuse_writes(node: NodeName, shards: Iterable[ShardId]) -> Refused:
    """Report read-only shards that rows would leave or reach."""
    listed = ranges.of(sorted(shards))
    return Refused(
        "shards_refuse_writes",
        f"node {node}: shards {listed} are read-only",
        hint=f"`shardctl read-only off {listed}`, then run the command again",
    )


def rows_left(
    table: Table,
    belongs_to: ShardId,
    *,
    conflicts: Sequence[tuple[str, str]],
    in_use: int,
    moved: bool,
) -> Refused:
    """Report rows that are still in a wrong shard; exit code 1 where none was moved."""
    said = [f"primary key {key}: {why}" for key, why in conflicts[:_SHOWN]]
    if len(conflicts) > _SHOWN:
        said.append(f"{len(conflicts) - _SHOWN} more such rows")
    if in_use:
        said.append(f"{in_use} rows are in use by other sessions")
    hint = "compare both rows, and delete one of them by hand" if conflicts else ""
    again = "run the command again for the rows in use" if in_use else ""
    return incomplete_if(
        moved,
        "rows_left",
        f"shard {table.shard} on node {table.node}: rows of table {table.name} that belong to "
        f"shard {belongs_to} are left: {'; '.join(said)}",
        hint="; ".join(part for part in (hint, again) if part),
    )
