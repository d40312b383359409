"""Names and numbers of nodes, poolers and shards, as types of their own."""

from __future__ import annotations

from typing import NewType

ShardId = NewType("ShardId", int)
NodeName = NewType("NodeName", str)
PoolerName = NewType("PoolerName", str)
