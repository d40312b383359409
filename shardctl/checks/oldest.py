"""The oldest id of each shard, by the index of each table's primary key."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl.checks import ids
from shardctl.ids import times
from shardctl.ids.layout import Layout
from shardctl.state import observer

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from shardctl.errors import ShardctlError
    from shardctl.postgres.connection import Connection
    from shardctl.state.shard_loads import ShardLoad
    from shardctl.topology.model import Node, NodeName, ShardId, Topology


@dataclass(frozen=True, slots=True)
class Oldest:
    """The smallest id that the tables of a shard hold, and when it was made."""

    id: int
    time_ms: int

    @property
    def time(self) -> str:
        """The time in RFC 3339."""
        return times.render(self.time_ms)

    def age_s(self, now: datetime) -> float:
        """Give the seconds since it was made; none for an id from the future."""
        return max(0.0, now.timestamp() - self.time_ms / 1000)


def read(
    topology: Topology, shards: Iterable[ShardLoad], *, purpose: str
) -> tuple[dict[tuple[NodeName, ShardId], Oldest], list[ShardctlError]]:
    """Read the oldest ids of shards, each node in parallel; and the problems of nodes.

    Shards without tables whose ids next_id() makes, or without rows, have none; tables that are
    locked do not count. Opens every such table: about 0.15 ms each, so it is done on request.
    """
    schemas: dict[NodeName, dict[str, ShardId]] = defaultdict(dict)
    for one in shards:
        if one.exists:
            schemas[one.node][one.schema] = one.shard
    layout = Layout.of(topology.id)

    def look(session: Connection, node: Node) -> dict[ShardId, Oldest]:
        found: dict[ShardId, Oldest] = {}
        tables = ids.tables_of(session, list(schemas[node.name]))
        extremes, _ = ids.extremes(session, tables)
        for table, low, _ in extremes:
            shard = schemas[node.name][table.schema]
            made = 0 <= low <= layout.highest_id
            if made and (shard not in found or low < found[shard].id):
                found[shard] = Oldest(low, layout.decode(low).time_ms)
        return found

    nodes = [topology.nodes[name] for name in schemas]
    asked = observer.ask(topology, look, purpose=purpose, nodes=nodes)
    every = {
        (node, shard): oldest
        for node, found in asked.values.items()
        for shard, oldest in found.items()
    }
    return every, list(asked.errors.values())
