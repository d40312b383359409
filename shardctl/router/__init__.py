"""What an application of a sharded fleet imports: rows by shard key, wherever the shard is.

Names are loaded when they are used first: an application pays for the face that it has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardctl.router.aggregates import Avg, Count, Max, Min, Sum
    from shardctl.router.asynchronous import AsyncScattered, AsyncShardedDatabase
    from shardctl.router.database import Scattered, ShardedDatabase
    from shardctl.router.errors import (
        AnotherCluster,
        AnotherLoop,
        Closed,
        CommitUnknown,
        DeadlinePassed,
        IdsUnlike,
        InsertedInPart,
        MapUnread,
        MapWentBack,
        NoConnection,
        NodeUnknown,
        NotCommitted,
        NothingReturned,
        OrderUnsupported,
        ShardMoved,
    )
    from shardctl.router.events import StatementEvent
    from shardctl.router.settings import NodeHealth, PoolSettings, Stats
    from shardctl.router.statements import OnConflict, Order

__all__ = [
    "AnotherCluster",
    "AnotherLoop",
    "AsyncScattered",
    "AsyncShardedDatabase",
    "Avg",
    "Closed",
    "CommitUnknown",
    "Count",
    "DeadlinePassed",
    "IdsUnlike",
    "InsertedInPart",
    "MapUnread",
    "MapWentBack",
    "Max",
    "Min",
    "NoConnection",
    "NodeHealth",
    "NodeUnknown",
    "NotCommitted",
    "NothingReturned",
    "OnConflict",
    "Order",
    "OrderUnsupported",
    "PoolSettings",
    "Scattered",
    "ShardMoved",
    "ShardedDatabase",
    "StatementEvent",
    "Stats",
    "Sum",
]

_HOMES = {
    "aggregates": ["Avg", "Count", "Max", "Min", "Sum"],
    "asynchronous": ["AsyncScattered", "AsyncShardedDatabase"],
    "database": ["Scattered", "ShardedDatabase"],
    "errors": [
        "AnotherCluster",
        "AnotherLoop",
        "Closed",
        "CommitUnknown",
        "DeadlinePassed",
        "IdsUnlike",
        "InsertedInPart",
        "MapUnread",
        "MapWentBack",
        "NoConnection",
        "NodeUnknown",
        "NotCommitted",
        "NothingReturned",
        "OrderUnsupported",
        "ShardMoved",
    ],
    "events": ["StatementEvent"],
    "settings": ["NodeHealth", "PoolSettings", "Stats"],
    "statements": ["OnConflict", "Order"],
}
"""Modules, and what applications import of each."""


def __getattr__(name: str) -> Any:
    """Load a name with its first use."""
    for home, names in _HOMES.items():
        if name in names:
            from importlib import import_module  # noqa: PLC0415  # it is there already

            found = getattr(import_module(f"{__name__}.{home}"), name)
            globals()[name] = found
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
