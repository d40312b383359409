"""From a shard key to its shard."""

from __future__ import annotations

from shardctl.topology.model import ShardId


def shard_of(key: int, count: int) -> ShardId:
    """Give the shard of an integer key: the key modulo `count`, never negative.

    SQL's `%` takes the sign of the key; there, write `((key % n) + n) % n`.

    >>> shard_of(31341, 2000), shard_of(-1, 8)
    (1341, 7)
    """
    return ShardId(key % count)
