"""Shards that change their nodes, as moves in an order: who needs it most comes first."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from shardctl.balance.fleet import GroupMove
from shardctl.balance.working import Working

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shardctl.balance.fleet import ShardLoad
    from shardctl.topology.model import NodeName, ShardId

_SHARDS = 128
_BYTES = 64 * 1024**3
"""The most of one move: a source keeps all WAL of a copy, and an interrupted copy starts again."""


def moves(work: Working, shards: Mapping[ShardId, ShardLoad]) -> list[GroupMove]:
    """List the moves from where the shards are to where a plan has them, in their order."""
    pairs: dict[tuple[NodeName, NodeName], list[ShardId]] = defaultdict(list)
    for shard in sorted(shards):
        if (source := shards[shard].node) != (target := work.owner[shard]):
            pairs[source, target].append(shard)
    waiting = [
        (source, target, part)
        for (source, target), chosen in pairs.items()
        for part in _parts(work, chosen)
    ]
    now = Working(list(work.nodes.values()), shards, work.counted)
    now.share, now.alone = work.share, work.alone
    return list(_ordered(now, waiting))


def _parts(work: Working, shards: Sequence[ShardId]) -> Iterator[list[ShardId]]:
    """Divide shards into moves of a size that can be repeated."""
    part: list[ShardId] = []
    for shard in shards:
        if part and (
            len(part) == _SHARDS or work.bytes_of(part) + work.shards[shard].bytes > _BYTES
        ):
            yield part
            part = []
        part.append(shard)
    if part:
        yield part


def _ordered(
    now: Working, waiting: list[tuple[NodeName, NodeName, list[ShardId]]]
) -> Iterator[GroupMove]:
    """Order moves: from the fullest node to the emptiest, as both are by then."""
    while waiting:
        first = max(
            waiting,
            key=lambda one: (
                now.deviation(one[0]), -now.deviation(one[1]), now.load_of(one[2]), -one[2][0]
            ),
        )  # fmt: skip
        waiting.remove(first)
        source, target, shards = first
        why = _why(now, source, target, shards)
        now.move(shards, target)
        yield GroupMove(source, target, tuple(shards), now.bytes_of(shards), why)


def _why(now: Working, source: NodeName, target: NodeName, shards: Sequence[ShardId]) -> str:
    """Give the reason for a move, as the fleet is then."""
    if now.alone.get(target) in shards:
        return f"shard {now.alone[target]} is larger than a node's share: node {target} is its own"
    if now.nodes[source].weight == 0:
        return f"node {source} has weight 0"
    if (large := now.alone.get(source)) is not None:
        return f"node {source} is shard {large}'s own, which is larger than a node's share"
    over, under = _part(now.deviation(source)), _part(now.deviation(target))
    return f"node {source} is {over} its share, node {target} is {under} it"


def _part(deviation: float) -> str:
    """Write how far a node is from its share.

    >>> _part(0.123), _part(-1.0), _part(0.001)
    ('12% above', '100% below', 'at')
    """
    rounded = round(deviation * 100)
    if rounded == 0:
        return "at"
    return f"{abs(rounded)}% {'above' if rounded > 0 else 'below'}"
