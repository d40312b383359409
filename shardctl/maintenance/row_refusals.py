"""Why rows are not moved, and what is left when they were."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.errors import ShardctlError, Unfinished
from shardctl.topology import ranges

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shardctl.maintenance.misplaced import Table
    from shardctl.topology.model import NodeName, ShardId

_SHOWN = 10


class TableUnmovable(ShardctlError):
    """A table whose rows cannot be copied and deleted without another effect."""

    def __init__(self, node: NodeName, shard: ShardId, table: str, what: Sequence[str]) -> None:
        super().__init__(
            f"node {node}: shard {shard}: rows of table {table} cannot be moved: {'; '.join(what)}",
            hint="move its rows by hand, or name the other tables with --table",
        )
        self.shard = shard


class ShardsRefuseWrites(ShardctlError):
    """Read-only shards that rows would leave or reach."""

    def __init__(self, node: NodeName, shards: Iterable[ShardId]) -> None:
        listed = ranges.of(sorted(shards))
        super().__init__(
            f"node {node}: shards {listed} are read-only",
            hint=f"`shardctl read-only off {listed}`, then run the command again",
        )


class CopyDiffers(ShardctlError):
    """The target does not hold what was copied; both transactions were rolled back."""

    exit_code = 3

    def __init__(self, table: Table, belongs_to: ShardId, what: str) -> None:
        super().__init__(
            f"rows of table {table.name} from shard {table.shard} to shard {belongs_to}: {what}; "
            "this batch was rolled back",
            hint="compare the tables of both shards: `shardctl verify --check structure`",
        )


class RowsLeft(Unfinished):
    """Rows that are still in a wrong shard; exit code 1 where none was moved."""

    def __init__(
        self,
        table: Table,
        belongs_to: ShardId,
        *,
        conflicts: Sequence[tuple[str, str]],
        in_use: int,
        moved: bool,
    ) -> None:
        said = [f"primary key {key}: {why}" for key, why in conflicts[:_SHOWN]]
        if len(conflicts) > _SHOWN:
            said.append(f"{len(conflicts) - _SHOWN} more such rows")
        if in_use:
            said.append(f"{in_use} rows are in use by other sessions")
        hint = "compare both rows, and delete one of them by hand" if conflicts else ""
        again = "run the command again for the rows in use" if in_use else ""
        super().__init__(
            f"shard {table.shard} on node {table.node}: rows of table {table.name} that belong to "
            f"shard {belongs_to} are left: {'; '.join(said)}",
            hint="; ".join(part for part in (hint, again) if part),
        )
        self.exit_code = 3 if moved else 1
        self.conflicts = tuple(conflicts)
        self.in_use = in_use
