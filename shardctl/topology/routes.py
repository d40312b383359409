"""From shards as people name them to where they live: schema, node, aliases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl.errors import Refused, UsageError
from shardctl.topology import names, ranges
from shardctl.topology.model import NodeName, ShardId

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardctl.topology.model import AliasKind, Node, Pooler, Topology


class ShardNotFound(UsageError):
    """A shard number that the topology does not have."""

    def __init__(self, shard: int, count: int) -> None:
        super().__init__(f"shard {shard} is not in the topology, which has 0..{count - 1}")


@dataclass(frozen=True, slots=True)
class Route:
    """Where a shard lives; `poolers` pairs each pooler with the alias that leads there."""

    shard: ShardId
    schema: str
    node: Node
    aliases: Mapping[AliasKind, str]
    poolers: tuple[tuple[Pooler, str], ...]


def node(topology: Topology, name: str) -> Node:
    """Give the node of a name; raises UsageError."""
    found = topology.nodes.get(NodeName(name))
    if found is None:
        raise UsageError(f"unknown node {name!r}", hint=f"nodes: {', '.join(topology.nodes)}")
    return found


def listed(topology: Topology, text: str | None) -> tuple[ShardId, ...]:
    """Expand a list such as `2-3,17`, of shards that there are, in the order written; None is all.

    Raises ShardNotFound, and UsageError where it is no such list.
    """
    if text is None:
        return tuple(sorted(topology.owners()))
    try:
        found = ranges.parse(text)
    except ValueError as error:
        raise UsageError(str(error), hint="specify shards such as 2-3,17") from error
    last = max((one.last for one in found), default=0)
    if last >= topology.shard_count:
        raise ShardNotFound(last, topology.shard_count)
    return tuple(ShardId(n) for one in found for n in range(one.first, one.last + 1))


def of_shard(topology: Topology, shard: int, owners: Sequence[str] = ()) -> Route:
    """Route to a shard by these `owners`, a node for each shard; by the topology without them.

    Raises ShardNotFound, and owner_unknown of a node that only `owners` have.
    """
    found = ShardId(shard)
    if not 0 <= shard < topology.shard_count:
        raise ShardNotFound(shard, topology.shard_count)
    owner = NodeName(owners[shard]) if owners else topology.owners()[found]
    node = topology.nodes.get(owner)
    if node is None:
        raise Refused(
            "owner_unknown",
            f"the map gives shard {shard} to node {owner}, which is not in {topology.path.name}",
            hint="use the newest topology file",
        )
    known: dict[AliasKind, str] = {
        "node": names.of_node(topology.database.name, node.name),
        "shard": topology.schema(found),
    }
    offered = {kind for pooler in topology.poolers.values() for kind in pooler.aliases}
    return Route(
        shard=found,
        schema=topology.schema(found),
        node=node,
        aliases={kind: name for kind, name in known.items() if kind in offered},
        poolers=tuple((p, known[p.aliases[0]]) for p in topology.poolers.values() if p.aliases),
    )
