"""What an application of a sharded fleet imports: rows by shard key, wherever the shard is."""

from shardctl.router.asynchronous import AsyncScattered, AsyncShardedDatabase
from shardctl.router.database import Scattered, ShardedDatabase
from shardctl.router.errors import (
    AnotherCluster,
    AnotherLoop,
    Closed,
    DeadlinePassed,
    IdsUnlike,
    MapUnread,
    MapWentBack,
    NoConnection,
    NodeUnknown,
    NothingReturned,
    OrderUnsupported,
    ShardMoved,
    WritesUnseen,
)
from shardctl.router.settings import NodeHealth, PoolSettings, Stats
from shardctl.router.statements import Order

__all__ = [
    "AnotherCluster",
    "AnotherLoop",
    "AsyncScattered",
    "AsyncShardedDatabase",
    "Closed",
    "DeadlinePassed",
    "IdsUnlike",
    "MapUnread",
    "MapWentBack",
    "NoConnection",
    "NodeHealth",
    "NodeUnknown",
    "NothingReturned",
    "Order",
    "OrderUnsupported",
    "PoolSettings",
    "Scattered",
    "ShardMoved",
    "ShardedDatabase",
    "Stats",
    "WritesUnseen",
]
