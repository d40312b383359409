"""What the planner is given and what it gives: nodes, shards, and moves; values only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardctl.topology.model import NodeName, ShardId


@dataclass(frozen=True, slots=True)
class NodeRoom:
    """A node that takes part: its share is its weight, and it can receive `room` bytes.

    Weight 0 empties the node. None is room without a known limit.
    """

    name: NodeName
    weight: float = 1.0
    room: int | None = None


@dataclass(frozen=True, slots=True)
class ShardLoad:
    """A shard: where it is, what it counts for in the balance, and what a move of it copies."""

    shard: ShardId
    node: NodeName
    load: float
    bytes: int


@dataclass(frozen=True, slots=True)
class GroupMove:
    """One move of a plan: shards of one node that go to one other, and why."""

    source: NodeName
    target: NodeName
    shards: tuple[ShardId, ...]
    bytes: int
    why: str


@dataclass(frozen=True, slots=True)
class Stuck:
    """A shard that should leave its node, and that no other node has room for."""

    shard: ShardId
    node: NodeName
    bytes: int
    why: str


@dataclass(frozen=True, slots=True)
class NodeChange:
    """A node before and after a plan; `share` is the load that it should have."""

    node: NodeName
    share: float
    alone: ShardId | None
    """The one shard that it should have, because that is larger than a node's share."""
    loads: tuple[float, float]
    bytes: tuple[int, int]
    shards: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Balance:
    """A plan: the moves in their order, every node before and after, and what cannot move."""

    moves: tuple[GroupMove, ...]
    nodes: tuple[NodeChange, ...]
    stuck: tuple[Stuck, ...] = ()
    left_out: int = 0
    """How many more moves there are beyond the most that were wanted."""

    @property
    def bytes(self) -> int:
        """The bytes that the moves copy."""
        return sum(move.bytes for move in self.moves)
