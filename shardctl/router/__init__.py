"""What an application of a sharded fleet imports: rows by shard key, wherever the shard is."""

from shardctl.router.core import PoolSettings, StatementEvent, Stats
from shardctl.router.errors import (
    AnotherCluster,
    AnotherLoop,
    Closed,
    DeadlinePassed,
    MapUnread,
    MapWentBack,
    NoConnection,
    NodeUnknown,
    OrderUnsupported,
    ShardMoved,
    WritesUnseen,
)
from shardctl.router.tasks.database import AsyncShardedDatabase
from shardctl.router.threads.database import ShardedDatabase

__all__ = [
    "AnotherCluster",
    "AnotherLoop",
    "AsyncShardedDatabase",
    "Closed",
    "DeadlinePassed",
    "MapUnread",
    "MapWentBack",
    "NoConnection",
    "NodeUnknown",
    "OrderUnsupported",
    "PoolSettings",
    "ShardMoved",
    "ShardedDatabase",
    "StatementEvent",
    "Stats",
    "WritesUnseen",
]
