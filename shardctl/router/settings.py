"""What an application may choose of the router's pools and patience."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardctl.topology.model import NodeName


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
