"""Why rows are not moved, and what is left when they were."""

from __future__ import annotations

from dataclasses import dataclass, field
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
        hint="move its rows by hand, or choose other tables with --table",
    )


def shards_refuse_writes(node: NodeName, shards: Iterable[ShardId]) -> Refused:
    """Report read-only shards that rows would leave or reach."""
    listed = ranges.of(sorted(shards))
    return Refused(
        "shards_refuse_writes",
        f"node {node}: shards {listed} are read-only",
        hint=f"run `shardctl read-only off {listed}`, then run the command again",
    )


@dataclass(slots=True)
class Outcome:
    """What came of a pair; conflicts and refused are primary key and reason.

    Of a conflict, the right shard has another row with the primary key; of one that it refused,
    it may have none.
    """

    moved: int = 0
    conflicts: list[tuple[str, str]] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    in_use: int = 0

    @property
    def left(self) -> bool:
        """Whether rows are still in the wrong shard."""
        return bool(self.conflicts or self.refused or self.in_use)


def rows_left(table: Table, belongs_to: ShardId, outcome: Outcome, *, moved: bool) -> Refused:
    """Report rows that are still in a wrong shard; exit code 1 where none was moved."""
    reasons = []
    for rows in (outcome.conflicts, outcome.refused):
        reasons += [f"primary key {key}: {why}" for key, why in rows[:_SHOWN]]
        if len(rows) > _SHOWN:
            reasons.append(f"{len(rows) - _SHOWN} more such rows")
    if outcome.in_use:
        reasons.append(f"{outcome.in_use} rows are in use by other sessions")
    hints = []
    if outcome.conflicts:
        hints.append("compare the two rows of each primary key, and delete one by hand")
    if outcome.refused:
        hints.append(
            f"fix the reason why shard {belongs_to} rejects the rows, and run the command again"
        )
    if outcome.in_use:
        hints.append("run the command again for the rows in use")
    return incomplete_if(
        moved,
        "rows_left",
        f"shard {table.shard} on node {table.node}: rows of table {table.name} for "
        f"shard {belongs_to} were not moved: {'; '.join(reasons)}",
        hint="; ".join(hints),
    )
