"""What `status` shows of a node: its server, sizes, sessions, replication, retired schemas."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from shardctl.access import read_only
from shardctl.state import ledger

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from shardctl.access.read_only import Mark
    from shardctl.state.ledger import Copy
    from shardctl.topology.model import NodeName, ShardId


class State(StrEnum):
    """Whether a node could be looked at.

    A node without shards that cannot be logged in to is absent; one that was logged in to
    and did not answer every question is unreadable.
    """

    up = "up"
    down = "down"
    absent = "absent"
    unreadable = "unreadable"


@dataclass(frozen=True, slots=True)
class Slot:
    """A replication slot; bytes are None where it holds back no WAL.

    `lag_bytes` are what the subscriber of a logical slot has not confirmed.
    """

    name: str
    type: str
    active: bool
    wal_status: str | None
    retained_bytes: int | None
    lag_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Standby:
    """A server that streams from the node; lags are None where the server does not show.

    The lag in seconds is unknown while nothing is written, too.
    """

    name: str
    state: str | None
    lag_bytes: int | None
    lag_s: float | None


@dataclass(frozen=True, slots=True)
class Retired:
    """A retired schema; the shard is None where its name is no shard's of the topology.

    `ended` is when its move was over, `due` when prune may drop it; None where no journal has
    a move that reports it.
    """

    schema: str
    shard: ShardId | None
    move: str
    size_bytes: int | None
    ended: datetime | None = None
    due: datetime | None = None

    def as_json(self) -> dict[str, Any]:
        """Give the shape of docs/reference/json.md."""
        return {
            "schema": self.schema,
            "shard": self.shard,
            "move": self.move,
            "size_bytes": self.size_bytes,
            "ended": ledger.written(self.ended),
            "due": ledger.written(self.due),
        }


@dataclass(frozen=True, slots=True)
class Disk:
    """The file system on which the data directory is."""

    free_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One node; None is what is unknown, which is everything where it is not up.

    `owned` are the shards that the topology gives to the node, and `sizes` has those of them
    that live there, in bytes (None: a lock forbade to look); `read_only` has those that are
    so, at least in part. `rows` is an estimate of
    ANALYZE, without tables that were never analysed. `error` of a node that is up shows that
    it is another node than the topology's; `says` is which one of this
    cluster it is then.
    """

    name: NodeName
    state: State
    owned: tuple[ShardId, ...]
    error: str | None = None
    says: NodeName | None = None
    role: str | None = None
    version: str | None = None
    uptime_s: float | None = None
    map_version: int | None = None
    sizes: Mapping[ShardId, int | None] = field(default_factory=dict)
    read_only: Mapping[ShardId, Mark] = field(default_factory=dict)
    retired: tuple[Retired, ...] = ()
    size_bytes: int | None = None
    rows: int | None = None
    sessions: int | None = None
    idle_in_transaction: int | None = None
    tps: float | None = None
    slots: tuple[Slot, ...] = ()
    standbys: tuple[Standby, ...] = ()
    disk: Disk | None = None
    disk_error: str | None = None
    """Why the disk of a node that is up is unknown; None, too, without a data_directory."""
    journal: tuple[Copy, ...] = ()
    map: Mapping[ShardId, NodeName] = field(default_factory=dict)
    """The owner of each shard, as the node knows it."""

    def read_only_alike(self) -> dict[Mark, tuple[ShardId, ...]]:
        """Give read-only shards, those together of which the same is to be reported."""
        return read_only.alike(self.read_only)

    def as_json(self) -> dict[str, Any]:
        """Give the shape of docs/reference/json.md."""
        return {
            "name": self.name,
            "state": self.state.value,
            "role": self.role,
            "version": self.version,
            "uptime_s": None if self.uptime_s is None else int(self.uptime_s),
            "map_version": self.map_version,
            "owned": list(self.owned),
            "shards": list(self.sizes),
            "shard_sizes_bytes": {str(shard): size for shard, size in self.sizes.items()},
            "read_only": [
                {
                    "shards": list(shards),
                    "complete": mark.whole,
                    "since": ledger.written(mark.since),
                    "by": mark.by,
                }
                for mark, shards in self.read_only_alike().items()
            ],
            "retired": [one.as_json() for one in self.retired],
            "size_bytes": self.size_bytes,
            "rows_estimate": self.rows,
            "sessions": self.sessions,
            "idle_in_transaction": self.idle_in_transaction,
            "tps": None if self.tps is None else round(self.tps, 1),
            "slots": [
                {
                    "name": slot.name,
                    "type": slot.type,
                    "active": slot.active,
                    "wal_status": slot.wal_status,
                    "retained_bytes": slot.retained_bytes,
                    "lag_bytes": slot.lag_bytes,
                }
                for slot in self.slots
            ],
            "standbys": [
                {"name": s.name, "state": s.state, "lag_bytes": s.lag_bytes, "lag_s": s.lag_s}
                for s in self.standbys
            ],
            "disk_free_bytes": self.disk.free_bytes if self.disk else None,
            "disk_total_bytes": self.disk.total_bytes if self.disk else None,
            "disk_error": self.disk_error,
            "error": self.error,
        }
