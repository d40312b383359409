"""Half of a node's shards, chosen by size; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.topology import ranges
from shardctl.topology.model import ShardId

if TYPE_CHECKING:
    from collections.abc import Mapping


def half(sizes: Mapping[ShardId, int]) -> list[ShardId]:
    """Choose the upper part of each range of shards, such that both halves weigh about the same.

    So neither half has more ranges than there were. The halves differ by no more than one shard
    weighs, in bytes and, where shards are empty, in number; one shard alone has no half.

    >>> half({ShardId(0): 2, ShardId(1): 2, ShardId(2): 2, ShardId(3): 2, ShardId(7): 6})
    [2, 3]
    >>> half({ShardId(0): 5, ShardId(1): 4, ShardId(2): 3, ShardId(3): 2})
    [2, 3]
    """
    chosen: list[ShardId] = []
    more, many = 0, 0  # by how many bytes, and shards, the half that stays is ahead
    for first, last in ranges.merge(ranges.Range(shard, shard) for shard in sizes):
        run = [ShardId(shard) for shard in range(first, last + 1)]
        more, many = more + sum(sizes[shard] for shard in run), many + len(run)
        best, cut = (more, many), len(run)
        for place in range(len(run) - 1, -1, -1):
            more, many = more - 2 * sizes[run[place]], many - 2
            if (abs(more), abs(many)) < (abs(best[0]), abs(best[1])):
                best, cut = (more, many), place
        more, many = best
        chosen += run[cut:]
    return chosen
