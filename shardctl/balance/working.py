"""The fleet while a plan is made: who has what by now, and how far each node is from its share."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from shardctl.balance.fleet import NodeRoom, ShardLoad
    from shardctl.balance.shares import Shares
    from shardctl.topology.model import NodeName, ShardId

_BIG = 0.3
"""From this part of a share on, a shard is placed before smaller ones fill the gaps."""


class Working:
    """Shards on nodes; `move` changes it.

    What a node receives takes its room, and what leaves it gives none back: the retired copy stays
    there until `prune`.
    """

    def __init__(
        self,
        nodes: Sequence[NodeRoom],
        shards: Mapping[ShardId, ShardLoad],
        counted: Mapping[ShardId, float],
    ) -> None:
        self.nodes = {node.name: node for node in nodes}
        self.shards = shards
        self.counted = counted
        self.owner = {shard: one.node for shard, one in shards.items()}
        self.held: dict[NodeName, set[ShardId]] = {name: set() for name in self.nodes}
        for shard, node in self.owner.items():
            self.held[node].add(shard)
        self.load = {
            name: math.fsum(counted[shard] for shard in held) for name, held in self.held.items()
        }
        self.room = {
            node.name: math.inf if node.room is None else float(node.room) for node in nodes
        }
        self.share: dict[NodeName, float] = {}
        self.fixed: set[ShardId] = set()
        self.alone: Mapping[NodeName, ShardId] = {}

    def take(self, shares: Shares) -> None:
        """Take over what each node should have."""
        self.share, self.alone = shares.share, shares.alone
        self.fixed = {*shares.alone.values(), *shares.homeless}

    def move(self, chosen: Iterable[ShardId], target: NodeName) -> None:
        """Give shards to a node."""
        for shard in chosen:
            source = self.owner[shard]
            self.held[source].remove(shard)
            self.held[target].add(shard)
            self.owner[shard] = target
            self.load[source] -= self.counted[shard]
            self.load[target] += self.counted[shard]
            self.room[target] -= self.shards[shard].bytes

    def takers(self) -> list[NodeName]:
        """Name the nodes that share the load: those with a weight and without a shard alone."""
        return [n for n, node in self.nodes.items() if node.weight > 0 and n not in self.alone]

    def movable(self, node: NodeName) -> list[ShardId]:
        """List the shards of a node that may leave it, ascending."""
        return sorted(self.held[node] - self.fixed)

    def over(self, node: NodeName) -> float:
        """Give the load above a node's share; negative: below it."""
        return self.load[node] - self.share[node]

    def deviation(self, node: NodeName) -> float:
        """Give that as a part of its share; infinite for a node that should have none."""
        if self.share[node] > 0:
            return self.over(node) / self.share[node]
        return math.inf if self.held[node] else 0.0

    def big(self, shard: ShardId, node: NodeName) -> bool:
        """Return whether a shard is a large part of a node's share."""
        return self.counted[shard] >= _BIG * self.share[node]

    def big_load(self, node: NodeName) -> float:
        """Sum up the load of a node's big shards."""
        return math.fsum(self.counted[s] for s in self.held[node] if self.big(s, node))

    def bytes_of(self, chosen: Collection[ShardId]) -> int:
        """Sum up what a move of shards copies."""
        return sum(self.shards[shard].bytes for shard in chosen)

    def load_of(self, chosen: Collection[ShardId]) -> float:
        """Sum up what shards count for."""
        return math.fsum(self.counted[shard] for shard in chosen)
