"""What each node should have: its share of the load, or one shard that is larger than that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from shardctl.balance.fleet import NodeRoom, ShardLoad
    from shardctl.topology.model import NodeName, ShardId

_EXACT = 1e-9
_BESIDES = 1e-4
"""What every shard counts for besides its load, in mean loads: shards without any spread, too."""


@dataclass(frozen=True, slots=True)
class Shares:
    """The load that each node should have.

    `alone` are nodes that should have one shard and no other; `homeless` are shards that are larger
    than a share, and for which no node is free that has room.
    """

    share: dict[NodeName, float]
    alone: dict[NodeName, ShardId]
    homeless: tuple[ShardId, ...]


def loads(shards: Iterable[ShardLoad]) -> dict[ShardId, float]:
    """Give what each shard counts for, which is never 0: a fleet without load is one of equals."""
    every = list(shards)
    mean = sum(one.load for one in every) / max(1, len(every))
    if mean <= 0:
        return {one.shard: 1.0 for one in every}
    return {one.shard: one.load + mean * _BESIDES for one in every}


def of(
    nodes: Sequence[NodeRoom],
    shards: Mapping[ShardId, ShardLoad],
    counted: Mapping[ShardId, float],
    owner: Mapping[ShardId, NodeName],
    *,
    apart: bool = True,
) -> Shares:
    """Give every node its share; at least one node has a weight.

    A shard larger than the largest share gets a node alone: where it is, or else the emptiest node
    with room. What is left is shared by the other nodes, so smaller shards may then be larger than
    a share. Without `apart` none gets one alone.
    """
    free = {node.name: node for node in nodes if node.weight > 0}
    left = sum(counted.values())
    weights = sum(node.weight for node in free.values())
    held: dict[NodeName, float] = {node.name: 0.0 for node in nodes}
    for shard, node in owner.items():
        held[node] += counted[shard]
    alone: dict[NodeName, ShardId] = {}
    homeless: list[ShardId] = []
    for shard in sorted(counted, key=lambda one: (-counted[one], one)) if apart else ():
        largest = max((node.weight for node in free.values()), default=0.0)
        if len(free) <= 1 or counted[shard] <= left / weights * largest * (1 + _EXACT):
            break
        left -= counted[shard]
        home = _home(owner[shard], shards[shard].bytes, free, held)
        if home is None:
            homeless.append(shard)
            continue
        weights -= free.pop(home).weight
        alone[home] = shard
    share = {
        node.name: left / weights * node.weight if node.name in free else 0.0 for node in nodes
    }
    share |= {node: counted[shard] for node, shard in alone.items()}
    return Shares(share, alone, tuple(homeless))


def _home(
    now: NodeName, size: int, free: Mapping[NodeName, NodeRoom], held: Mapping[NodeName, float]
) -> NodeName | None:
    """Choose the node that a large shard has for itself; None where none has room."""
    if now in free:
        return now
    fitting = [name for name, node in free.items() if node.room is None or node.room >= size]
    return min(fitting, key=lambda name: (held[name] / free[name].weight, name), default=None)
