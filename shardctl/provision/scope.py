"""What of a fleet a plan is about: files and shards of migrations, or nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardctl.state.migrations import Migration
    from shardctl.topology.model import NodeName, ShardId


@dataclass(frozen=True, slots=True)
class Scope:
    """All files in all shards on all nodes, unless it is narrower; None is no limit."""

    files: frozenset[str] | None = None
    shards: frozenset[ShardId] | None = None
    undo: str | None = None
    """The file whose down part runs, where the file ran."""
    rollout: str | None = None
    """The open rollout that this belongs to; every other one is in the way."""
    nodes: frozenset[NodeName] | None = None
    """The nodes that are changed."""
    members: frozenset[NodeName] = frozenset()
    """Nodes without shards that become members, with a database if they have none so far."""
    lost: NodeName | None = None
    """A destroyed node, whose shards the topology gives to others: maps that name it are old."""
    everywhere: bool = False
    """Whether the locks of all nodes with shards are needed, and not only of those that change."""

    def changes(self, node: NodeName) -> bool:
        """Return whether the plan may change a node."""
        return self.nodes is None or node in self.nodes

    def chosen(self, migrations: Sequence[Migration]) -> list[Migration]:
        """Give what is to run of the folder's files; raises no_down_part."""
        if self.undo is not None:
            return [_reversed(one) for one in migrations if one.name == self.undo]
        return [one for one in migrations if self.files is None or one.name in self.files]


EVERYTHING = Scope()


def _reversed(migration: Migration) -> Migration:
    if migration.down is None:
        raise Refused(
            "no_down_part",
            f"{migration.file}: this migration has no down part",
            hint="add a line `-- shardctl: down` at the end of the file, and below it the "
            "statements that undo the file",
        )
    return migration.reversed()
