"""What an application may choose of the router's pools and patience."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from shardctl.topology.model import NodeName, ShardId


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
    """Called with each new connection, to register adapters for instance.

    A coroutine function for `AsyncShardedDatabase`, as psycopg_pool has it. Behind poolers,
    nothing that it sets in the server's session stays.
    """
    check: Callable[[Any], Any] | None = None
    """Called with a connection before each use; where it raises, another one is taken.

    The router looks without a round trip whether the other side has ended a connection, so few
    need this. A coroutine function for `AsyncShardedDatabase`.
    """
    row_factory: Any = None
    """psycopg's, for the connections of `shard()`; the router's own calls return tuples."""
    cursor_factory: Any = None
    """psycopg's, for the connections of `shard()`."""

    def options(self, *, pooled: bool) -> dict[str, Any]:
        """Give what psycopg's pool of a node takes; `pooled` if the node is behind a pooler."""
        return {
            "min_size": self.min_size,
            "max_size": self.max_size,
            "timeout": self.timeout,
            "max_idle": self.max_idle,
            "max_lifetime": self.max_lifetime,
            # psycopg's pool waits twice as long after each attempt that fails, for up to five
            # minutes, and starts no other until then: calls would fail long after an outage. It
            # gives up after this many seconds instead, and `reconnect_failed` begins the next.
            "reconnect_timeout": 1.0,
            "configure": self.configure,
            "check": self.check,
            # Each statement is a transaction of its own, unless one is begun. Prepared ones stay
            # in a server's session, which a pooler gives to another client after each.
            "kwargs": {
                "autocommit": True,
                "prepare_threshold": None if pooled else self.prepare_threshold,
                "row_factory": self.row_factory,
                "cursor_factory": self.cursor_factory,
            },
        }


class StatementEvent(NamedTuple):
    """A statement on one node, or a transaction, that has ended: what `on_statement` is given."""

    call: str
    """The router's method: `select`, `scatter`, ...; `shard` for a whole transaction."""
    table: str | None
    """None for a transaction."""
    node: NodeName
    shards: Sequence[ShardId]
    took_ms: float
    """From the call, with the wait for a connection, to the whole answer."""
    repeated: bool
    """Whether the shard had moved, so that this is the second attempt."""
    error: BaseException | None


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
