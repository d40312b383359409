"""What an application may choose of the router's pools and patience."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shardctl.topology.handles import NodeName


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """Of the pool of each node, which is opened when the node is first used; times in seconds."""

    min_size: int = 1
    max_size: int = 10
    timeout: float = 10.0
    """How long a statement waits for a connection."""
    max_idle: float = 600.0
    max_lifetime: float = 3600.0
    prepare_threshold: int | None = 5
    """After so many uses psycopg prepares a statement; behind poolers it never does."""
    configure: Callable[[Any], Any] | None = None
    """Called with each new connection, as psycopg_pool does; a coroutine function with asyncio.

    For psycopg's side of it, such as types: what it sets on the server is lost behind a pooler.
    """
    check: Callable[[Any], Any] | None = None
    """Called with a connection before each use, as psycopg_pool does.

    If it raises an error, another connection is taken. It costs a round trip if it asks the
    server; without it, the router sees for nothing whether a server has closed the connection.
    """
    row_factory: Callable[[Any], Callable[[Any], Any]] | None = None
    """Makes rows of all calls, such as psycopg's `dict_row`; None is tuples."""


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """How a node answered; `error` is None where it did."""

    error: str | None
    took_ms: float
    map_version: int | None


@dataclass(frozen=True, slots=True)
class Stats:
    """What the router has done so far; `pools` are psycopg_pool's own numbers."""

    map_version: int | None
    """None until the first map has been read."""
    map_reads: int
    """Newer maps that were taken over."""
    repeated: int
    """Statements that met the fence and were done again."""
    pools: Mapping[NodeName, Mapping[str, int]]
