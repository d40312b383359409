"""The map as applications read it: one statement, which any role of theirs may run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from shardctl.ids.layout import Layout
from shardctl.topology import keys
from shardctl.topology.model import NodeName
from shardctl.topology.names import SchemaPattern

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardctl.topology.keys import Key
    from shardctl.topology.model import KeyRule, ShardId, Topology

READ = b"""\
SELECT c.map_version, c.node, pg_catalog.current_database(), c.cluster, c.shard_count,
       c.key_rule, c.schema_pattern, c.epoch_ms, c.tick_ms, c.time_bits, c.shard_bits,
       c.sequence_bits,
       (SELECT pg_catalog.array_agg(m.shard ORDER BY m.shard) FROM shardctl.map AS m),
       (SELECT pg_catalog.array_agg(m.node ORDER BY m.shard) FROM shardctl.map AS m)
FROM shardctl.cluster AS c
"""
"""The node's one row, for `of_row`: version and owners are of one instant."""


@dataclass(frozen=True, slots=True)
class Map:
    """Which node owns which shard, and what is fixed for the life of the cluster.

    A topology file's map has version 0; that of the databases is newer.
    """

    version: int
    cluster: str
    pattern: SchemaPattern
    layout: Layout
    owners: tuple[NodeName, ...]
    """The owner of each shard, by its number."""
    key_rule: KeyRule = "modulo"

    @classmethod
    def of(cls, topology: Topology) -> Map:
        """Take the map out of a topology."""
        owners = topology.owners()
        return cls(
            0,
            topology.cluster,
            topology.schema_pattern,
            Layout.of(topology.id),
            tuple(owners[shard] for shard in sorted(owners)),
            topology.key_rule,
        )

    def shard_of(self, key: Key) -> ShardId:
        """Give the shard of a key; raises key_unsupported, key_not_an_id."""
        in_id = self.layout.shard_in if self.key_rule == "id" else None
        return keys.shard_of(key, len(self.owners), in_id)

    def same_cluster(self, other: Map) -> bool:
        """Return whether another map is of the same cluster, of whatever version."""
        return self._fixed() == other._fixed()

    def _fixed(self) -> tuple[object, ...]:
        return self.cluster, self.pattern, self.layout, len(self.owners), self.key_rule


class NodeMap(NamedTuple):
    """What a node reported: its own name, its database's, and the map."""

    node: NodeName
    database: str
    map: Map


def of_row(row: Sequence[Any]) -> NodeMap | None:
    """Read the row of `READ`; None while the map is not whole, as in the middle of an `init`."""
    version, node, database, cluster, count, rule, pattern, *layout, shards, nodes = row
    if version < 1 or shards != list(range(count)):
        return None
    owners = tuple(NodeName(owner) for owner in nodes)
    return NodeMap(
        NodeName(node),
        database,
        Map(version, cluster, SchemaPattern.parse(pattern), Layout(*layout), owners, rule),
    )
