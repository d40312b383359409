"""What the router knows of the fleet: the newest map, and how nodes are reached."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardctl.router.errors import AnotherCluster, NotOpen
from shardctl.topology.model import NodeName, ShardId

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shardctl.router.places import Places
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
    refused: set[NodeName] = field(default_factory=set)
    """Nodes whose newer maps were not believed: their word ends no search."""
    asked_at: float = -math.inf
    """When nodes were last asked for the map, on `time.monotonic`."""
    in_tests: bool = False
    """Whether it is a test fleet, where a call must not miss what a test has not committed."""
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
            if newer.version > self.map.version:
                self.found = newer, self.places
                self.reads += 1

    def losing(self, newer: Map) -> dict[NodeName, list[ShardId]]:
        """Group the shards that change hands by a newer map, by those who lose them."""
        pairs = enumerate(zip(self.map.owners, newer.owners, strict=True))
        return self.by_node(ShardId(n) for n, (here, there) in pairs if here != there)

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
        """Give the shard of a key; raises key_unsupported, key_not_an_id, NotOpen."""
        return self.map.shard_of(key)

    def shard_of_id(self, number: int) -> ShardId:
        """Give the shard that made an id; raises IdOutOfRange, ShardNotFound, NotOpen."""
        return self.require(self.map.layout.decode(number).shard)

    def require(self, shard: int) -> ShardId:
        """Take a number for a shard's; raises ShardNotFound."""
        count = len(self.map.owners)
        if not 0 <= shard < count:
            # It brings along all that reads a topology, which only this error needs.
            from shardctl.topology.routes import ShardNotFound  # noqa: PLC0415

            raise ShardNotFound(shard, count)
        return ShardId(shard)

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

    def every(self) -> list[ShardId]:
        """List all shards."""
        return [ShardId(number) for number in range(len(self.map.owners))]

    def owning(self) -> list[NodeName]:
        """List the nodes that own shards."""
        return sorted(set(self.map.owners))

    def others(self) -> list[NodeName]:
        """List the nodes that own none, as far as they are known."""
        return sorted(set(self.places.nodes) - set(self.map.owners))
