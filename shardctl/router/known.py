"""What the router knows of the fleet: the newest map, and how nodes are reached."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardctl.router import events
from shardctl.router.errors import AnotherCluster, NodeUnknown, NotOpen
from shardctl.topology import keys
from shardctl.topology.handles import NodeName, ShardId

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from shardctl.router.events import StatementEvent
    from shardctl.router.places import Places
    from shardctl.router.rows import Factory
    from shardctl.state.map import Map, NodeMap
    from shardctl.topology.keys import Key


@dataclass(slots=True)
class Known:
    """The newest map that any node returned; threads may share it."""

    patience_s: float
    found: tuple[Map, Places] | None = None
    """None until the first answer, where there is no topology."""
    schemas: list[str] = field(default_factory=list)
    reads: int = 0
    """Maps that were newer than what was known."""
    repeated: int = 0
    """Statements that met the fence, and were done again."""
    asked_at: float = -math.inf
    """When nodes were last asked for the map, on `time.monotonic`."""
    on_statement: Callable[[StatementEvent], object] | None = None
    row_factory: Factory | None = None
    """Makes the rows of calls that name no other."""
    unsettled: dict[ShardId, float] = field(default_factory=dict)
    """When a shard was last seen fenced or with another owner, on `time.monotonic`."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def map(self) -> Map:
        """The newest map; raises NotOpen."""
        if self.found is None:
            raise NotOpen
        return self.found[0]

    @property
    def places(self) -> Places:
        """How nodes are reached; raises NotOpen."""
        if self.found is None:
            raise NotOpen
        return self.found[1]

    def begin(self, first: Map, places: Places) -> None:
        """Take the first map."""
        self.schemas = [first.pattern.schema(shard) for shard in range(len(first.owners))]
        self.found = first, places

    def adopt(self, newer: Map) -> None:
        """Take a map if it is newer than what is known; one that goes backwards never counts."""
        with self._lock:
            if newer.version <= self.map.version:
                return
            older = self.map
            self.found = newer, self.places
            self.reads += 1
        moved = [
            ShardId(shard)
            for shard, owners in enumerate(zip(older.owners, newer.owners, strict=True))
            if owners[0] != owners[1]
        ]
        self.note_unsettled(moved)
        events.LOG.info(
            "read version %d of the map (before: %d): %d shards have another node",
            newer.version,
            older.version,
            len(moved),
        )

    def note_unsettled(self, shards: Iterable[ShardId]) -> None:
        """Note that shards are fenced, or have moved, now."""
        now = time.monotonic()
        self.unsettled.update(dict.fromkeys(shards, now))

    def was_unsettled(self, shard: ShardId) -> bool:
        """Return whether a shard was fenced or moved within the router's patience."""
        noted = self.unsettled.get(shard, -math.inf)
        return noted >= time.monotonic() - max(self.patience_s, 1.0)

    def span(self, call: str, table: str | None, shards: Sequence[ShardId]) -> events.Span:
        """Begin to time a statement."""
        return events.Span(self.on_statement, call, table, shards)

    def renew_lock(self) -> None:
        """Forget the lock of a process that has forked: a thread that is not here may have it."""
        self._lock = threading.Lock()

    def require_same(self, reported: NodeMap) -> None:
        """Refuse the map of a node of another cluster; raises AnotherCluster."""
        if not self.map.same_cluster(reported.map):
            raise AnotherCluster(reported.node, reported.map.cluster, self.map.cluster)

    def count_repeated(self) -> None:
        """Note that a statement was done again."""
        with self._lock:
            self.repeated += 1

    def shard_of(self, key: Key) -> ShardId:
        """Give the shard of a key; raises key_unsupported, NotOpen."""
        return keys.shard_of(key, len(self.map.owners))

    def shard_of_id(self, number: int) -> ShardId:
        """Give the shard that made an id; raises IdOutOfRange, ShardNotFound, NotOpen."""
        return self.require(self.map.layout.decode(number).shard)

    def require(self, shard: int) -> ShardId:
        """Take a number for a shard's; raises ShardNotFound."""
        count = len(self.map.owners)
        if not 0 <= shard < count:
            raise keys.ShardNotFound(shard, count)
        return ShardId(shard)

    def require_node(self, node: str | None) -> None:
        """Take the name of a node, if any; raises NodeUnknown."""
        if node is not None and node not in {*self.map.owners, *self.places.nodes}:
            raise NodeUnknown(NodeName(node))

    def schema(self, shard: ShardId) -> str:
        """Name a shard's schema."""
        return self.schemas[shard]

    def owner(self, shard: ShardId) -> NodeName:
        """Name the node that owns a shard."""
        return self.map.owners[shard]

    def still(self, node: NodeName, shards: Iterable[ShardId]) -> list[ShardId]:
        """List those of these shards whose owner is `node`."""
        owners = self.map.owners
        return [shard for shard in shards if owners[shard] == node]

    def by_node(self, shards: Iterable[ShardId]) -> dict[NodeName, list[ShardId]]:
        """Group shards by their owners."""
        owners = self.map.owners
        found: dict[NodeName, list[ShardId]] = {}
        for shard in shards:
            found.setdefault(owners[shard], []).append(shard)
        return found

    def owning(self) -> list[NodeName]:
        """List the nodes that own shards."""
        return sorted(set(self.map.owners))

    def others(self) -> list[NodeName]:
        """List the nodes that own none, as far as they are known."""
        return sorted(set(self.places.nodes) - set(self.map.owners))
