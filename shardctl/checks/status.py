"""Look at the fleet as it is: nodes, sizes, sessions, replication."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import psycopg

from shardctl import fanout
from shardctl.checks import status_poolers
from shardctl.hosts import ports
from shardctl.ids import times
from shardctl.libpq import reason_of
from shardctl.postgres import queries
from shardctl.postgres.connection import NodeUnavailable, connect
from shardctl.state import cluster, lock
from shardctl.topology import names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shardctl.checks.status_poolers import PoolerStatus
    from shardctl.fanout import Progress
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import Node, NodeName, ShardId, Topology

QUERIES = queries.load("shardctl.checks", "status.sql")

_WIDTH = 16
_LOCK_TIMEOUT = "200ms"
_ATTEMPTS = 3


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
    """A replication slot; bytes are None where it holds back no WAL."""

    name: str
    type: str
    active: bool
    wal_status: str | None
    retained_bytes: int | None


@dataclass(frozen=True, slots=True)
class Standby:
    """A server that streams from the node; lags are None where the server does not tell.

    The lag in seconds is unknown while nothing is written, too.
    """

    name: str
    state: str | None
    lag_bytes: int | None
    lag_s: float | None


@dataclass(frozen=True, slots=True)
class Retired:
    """A retired schema; the shard is None where its name is no shard's of the topology."""

    schema: str
    shard: ShardId | None
    move: str
    size_bytes: int | None


@dataclass(frozen=True, slots=True)
class Disk:
    """The file system on which the data directory is."""

    free_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One node; None is what is not known, which is everything where it is not up.

    `owned` are the shards that the topology gives to the node, and `sizes` has those of them
    that live there, in bytes (None: a lock forbade to look). `rows` is an estimate of
    ANALYZE, without tables that were never analysed. `error` of a node that is up says that
    it is not the node which the topology takes it for.
    """

    name: NodeName
    state: State
    owned: tuple[ShardId, ...]
    error: str | None = None
    role: str | None = None
    version: str | None = None
    uptime_s: float | None = None
    map_version: int | None = None
    sizes: Mapping[ShardId, int | None] = field(default_factory=dict)
    retired: tuple[Retired, ...] = ()
    size_bytes: int | None = None
    rows: int | None = None
    sessions: int | None = None
    idle_in_transaction: int | None = None
    tps: float | None = None
    slots: tuple[Slot, ...] = ()
    standbys: tuple[Standby, ...] = ()
    disk: Disk | None = None

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
            "retired": [
                {"schema": r.schema, "shard": r.shard, "move": r.move, "size_bytes": r.size_bytes}
                for r in self.retired
            ],
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
                }
                for slot in self.slots
            ],
            "standbys": [
                {"name": s.name, "state": s.state, "lag_bytes": s.lag_bytes, "lag_s": s.lag_s}
                for s in self.standbys
            ],
            "disk_free_bytes": self.disk.free_bytes if self.disk else None,
            "disk_total_bytes": self.disk.total_bytes if self.disk else None,
            "error": self.error,
        }


@dataclass(frozen=True, slots=True)
class Status:
    """The fleet at a moment; `nodes` are in the topology's order."""

    cluster: str
    time: datetime
    nodes: tuple[NodeStatus, ...]
    poolers: tuple[PoolerStatus, ...] = ()

    @property
    def map_version(self) -> int | None:
        """The newest version of the map that a node has; None where none tells one."""
        return max((n.map_version for n in self.nodes if n.map_version is not None), default=None)

    def as_json(self) -> dict[str, Any]:
        """Give the shape of docs/reference/json.md."""
        return {
            "format": 1,
            "cluster": self.cluster,
            "time": times.render(int(self.time.timestamp() * 1000)),
            "map_version": self.map_version,
            "nodes": [node.as_json() for node in self.nodes],
            "poolers": [pooler.as_json() for pooler in self.poolers],
            "moves": [],
        }


@dataclass(frozen=True, slots=True)
class _Sample:
    """How many transactions had ended at a moment of the monotonic clock, in seconds."""

    at: float
    transactions: int


def observe(topology: Topology, *, sample_s: float, progress: Progress) -> Status:
    """Look at all nodes in parallel; nodes that cannot be looked at say why.

    Transactions are counted twice, at least `sample_s` apart, with one wait for all nodes;
    0 leaves them out. What shardctl itself asks is a transaction or two among them, and a
    busy session reports its own about once a second only, so a shorter sample is coarse.
    """
    now = datetime.now(UTC)
    sessions: dict[NodeName, Connection] = {}
    samples: dict[NodeName, _Sample] = {}

    def first(node: Node) -> NodeStatus:
        progress.expect(node.name, "looking", 2)
        found = _look(topology, node, sessions)
        if found.state is State.up and sample_s > 0:
            try:
                samples[node.name] = _sample(sessions[node.name])
            except psycopg.Error as error:
                found = _failed(node, sessions[node.name], error)
        progress.advance(node.name)
        return found

    def second(found: NodeStatus) -> NodeStatus:
        if found.name in samples:
            session = sessions[found.name]
            try:
                found = replace(found, tps=_rate(samples[found.name], _sample(session)))
            except psycopg.Error as error:
                found = _failed(topology.nodes[found.name], session, error)
        progress.advance(found.name)
        return found

    try:
        nodes = _all(fanout.run(topology.nodes.values(), first, width=_WIDTH))
        if samples:
            since = max(sample.at for sample in samples.values())
            time.sleep(max(0.0, since + sample_s - time.monotonic()))
        nodes = _all(fanout.run(nodes, second, width=_WIDTH))
    finally:
        for session in sessions.values():
            session.close()
    return Status(topology.cluster, now, nodes, status_poolers.observe(topology))


def _all(outcomes: Iterable[fanout.Outcome[Any, NodeStatus]]) -> tuple[NodeStatus, ...]:
    return tuple(outcome.result() for outcome in outcomes)


def _look(topology: Topology, node: Node, sessions: dict[NodeName, Connection]) -> NodeStatus:
    """Ask one node everything but its transactions; its session is left in `sessions`."""
    try:
        session = connect(node, topology.database, purpose=lock.purpose("status"), autocommit=True)
    except NodeUnavailable as error:
        state = State.down if node.shards else State.absent
        return NodeStatus(node.name, state, node.shards, error=error.reason)
    sessions[node.name] = session
    try:
        session.execute("SET default_transaction_read_only TO on")
        session.execute("SELECT set_config('lock_timeout', %s, false)", (_LOCK_TIMEOUT,))
        # In one transaction, so that our own questions do not look like load.
        with session.transaction():
            return _read(topology, node, session)
    except psycopg.Error as error:
        return _failed(node, session, error)


def _failed(node: Node, session: Connection, error: psycopg.Error) -> NodeStatus:
    """Tell a server that went away from one that answered with an error."""
    state = State.down if session.closed else State.unreadable
    return NodeStatus(node.name, state, node.shards, error=reason_of(error))


def _read(topology: Topology, node: Node, session: Connection) -> NodeStatus:
    row = session.execute(QUERIES["server"]).fetchone()
    clients = session.execute(QUERIES["sessions"]).fetchone()
    if row is None or clients is None:  # pragma: no cover  # one row each, always
        raise AssertionError
    in_recovery, version, uptime_s, size = row
    state = cluster.read(session) if cluster.is_present(session) else None
    error = None
    if state is not None and (state.cluster, state.node) != (topology.cluster, node.name):
        error = f"the server there is node {state.node} of cluster {state.cluster}"
    wanted = {topology.schema(shard): shard for shard in node.shards}
    found = _schemas(session, list(wanted))
    live = sorted((wanted[schema], schema) for schema in found if schema in wanted)
    rows = [found[schema][1] for _, schema in live]
    return NodeStatus(
        name=node.name,
        state=State.up,
        owned=node.shards,
        error=error,
        role="standby" if in_recovery else "primary",
        version=version.split()[0],
        uptime_s=uptime_s,
        map_version=state.map_version if state else None,
        sizes={shard: found[schema][0] for shard, schema in live},
        retired=_retired(topology, {s: found[s][0] for s in sorted(found) if s not in wanted}),
        size_bytes=size,
        rows=sum(n for n in rows if n is not None) if any(n is not None for n in rows) else None,
        sessions=clients[0],
        idle_in_transaction=clients[1],
        slots=tuple(Slot(*slot) for slot in session.execute(QUERIES["slots"])),
        standbys=tuple(Standby(*standby) for standby in session.execute(QUERIES["standbys"])),
        disk=disk_of(node),
    )


def _schemas(session: Connection, schemas: list[str]) -> dict[str, tuple[int | None, int | None]]:
    """Measure schemas: bytes and estimated rows of each that is there.

    A lock that came between the look for locks and the measuring is met by trying again;
    in the end it is the caller's error.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            with session.transaction():
                found = session.execute(QUERIES["schemas"], {"schemas": schemas})
                return {name: (size, rows) for name, size, rows in found}
        except psycopg.errors.LockNotAvailable:
            if attempt == _ATTEMPTS:
                raise
    raise AssertionError  # pragma: no cover


def _retired(topology: Topology, sizes: Mapping[str, int | None]) -> tuple[Retired, ...]:
    """Tell which shard each retired schema is of, by its name."""
    shards = {}
    for move in {schema[-8:] for schema in sizes}:
        for shard in topology.owners():
            shards[names.retired(topology.schema(shard), move)] = shard
    return tuple(
        Retired(schema, shards.get(schema), schema[-8:], size) for schema, size in sizes.items()
    )


def _sample(session: Connection) -> _Sample:
    row = session.execute(QUERIES["transactions"]).fetchone()
    if row is None:  # pragma: no cover  # the database in which the session is
        raise AssertionError
    return _Sample(time.monotonic(), row[0] or 0)


def _rate(first: _Sample, second: _Sample) -> float | None:
    """Give transactions a second; None where the statistics were reset in between.

    >>> _rate(_Sample(10.0, 100), _Sample(12.0, 150))
    25.0
    """
    ended, elapsed = second.transactions - first.transactions, second.at - first.at
    return ended / elapsed if ended >= 0 and elapsed > 0 else None


def disk_of(node: Node) -> Disk | None:
    """Measure the file system of a node's data directory; None where that is not known.

    It is known where the file gives the directory, the host is this machine, and the node
    is not reached by ssh. Other tablespaces, and a WAL directory elsewhere, are not looked at.
    """
    if node.data_directory is None or node.ssh is not None or not ports.is_here(node.host):
        return None
    try:
        usage = shutil.disk_usage(node.data_directory)
    except OSError:
        return None
    return Disk(free_bytes=usage.free, total_bytes=usage.total)
