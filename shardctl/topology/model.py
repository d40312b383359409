"""The topology as values: what the loader gives and everything else takes."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta  # noqa: TC003  # a field type that readers resolve
from pathlib import Path  # noqa: TC003  # same
from typing import TYPE_CHECKING, Literal, NewType

from shardctl.ids.layout import Layout

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardctl.topology.names import SchemaPattern

ShardId = NewType("ShardId", int)
NodeName = NewType("NodeName", str)
PoolerName = NewType("PoolerName", str)

Generator = Literal["strict", "classic"]
KeyRule = Literal["modulo", "id"]
AliasKind = Literal["shard", "node"]


@dataclass(frozen=True, slots=True)
class IdSettings(Layout):
    """How ids are laid out, and which generator makes them."""

    generator: Generator = "strict"


@dataclass(frozen=True, slots=True)
class Database:
    """The one database of the cluster and its roles."""

    name: str
    user: str
    app_roles: tuple[str, ...]
    replication_user: str
    migrations: Path | None
    options: Mapping[str, str]
    """Further libpq keywords, never a password."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Tables and the columns that hold their shard keys, for `verify --deep`."""
    subscription_options: Mapping[str, str] = field(default_factory=dict)
    """What of `options` is otherwise where the target of a move logs in to its source."""


@dataclass(frozen=True, slots=True)
class Ssh:
    """How to reach a host, and what a connection is shared by; None is as `~/.ssh/config` has it.

    `host` may be a name from there. `connect_timeout` is in seconds, for each step of the way.
    """

    host: str
    user: str | None = None
    port: int | None = None
    key_file: Path | None = None
    accept_new: bool = False
    connect_timeout: float = 10.0


@dataclass(frozen=True, slots=True)
class Control:
    """Commands that start, stop, reload and report a server; None means pg_ctl."""

    start: str | None
    stop: str | None
    reload: str | None
    status: str | None


@dataclass(frozen=True, slots=True)
class Node:
    """One PostgreSQL server and the shards that it should own, ascending."""

    name: NodeName
    host: str
    port: int
    shards: tuple[ShardId, ...]
    data_directory: Path | None
    bin_directory: Path | None
    os_user: str | None
    settings: Mapping[str, str]
    pooler_host: str
    """How poolers reach the node; the same as `host` unless the file has otherwise."""
    ssh: Ssh | None
    control: Control | None
    relative: tuple[str, ...] = ()
    """Keys of paths that are relative to the file, which is right on this machine only."""


@dataclass(frozen=True, slots=True)
class Pooler:
    """One PgBouncer."""

    name: PoolerName
    host: str
    port: int
    config: Path
    databases_file: Path
    """The included file with the aliases, which shardctl owns."""
    admin_user: str
    aliases: tuple[AliasKind, ...]
    os_user: str | None
    ssh: Ssh | None
    relative: tuple[str, ...] = ()
    """As of a node."""


@dataclass(frozen=True, slots=True)
class MoveSettings:
    """Defaults for moves."""

    max_pause: timedelta
    retain: timedelta
    clone_with: str | None = None
    """A command that copies the source for a clone; None is pg_basebackup."""
    max_wal: int | None = None
    """Bytes of WAL that a source keeps for a move at most; None is a share of its free disk."""


@dataclass(frozen=True, slots=True)
class Topology:
    """One cluster, as its file describes it; the loader has proved that it makes sense.

    Every shard from 0 to `shard_count - 1` is owned by exactly one node.
    """

    path: Path
    cluster: str
    shard_count: int
    schema_pattern: SchemaPattern
    id: IdSettings
    database: Database
    nodes: Mapping[NodeName, Node]
    poolers: Mapping[PoolerName, Pooler]
    move: MoveSettings
    key_rule: KeyRule = "modulo"
    """How an integer key names its shard: by its remainder, or as an id by its bits."""

    def schema(self, shard: ShardId) -> str:
        """Name the schema of `shard`."""
        return self.schema_pattern.schema(shard)

    def owners(self) -> dict[ShardId, NodeName]:
        """Map every shard to the node that should own it."""
        return {s: node.name for node in self.nodes.values() for s in node.shards}

    def owning(self) -> list[Node]:
        """List the nodes that own shards, in the file's order."""
        return [node for node in self.nodes.values() if node.shards]
