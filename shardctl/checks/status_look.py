"""What `status` shows of a node, over one read-only session."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import psycopg

from shardctl import fanout
from shardctl.access import read_only
from shardctl.errors import ShardctlError
from shardctl.hosts import accounts, files
from shardctl.hosts.reach import host_of
from shardctl.libpq import reason_of
from shardctl.postgres import queries
from shardctl.postgres.connection import NodeUnavailable, connect
from shardctl.state import cluster, ledger, lock
from shardctl.state.cluster import FORMAT
from shardctl.topology import names
from shardctl.topology.model import NodeName

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from shardctl.access.read_only import Mark
    from shardctl.postgres.connection import Connection
    from shardctl.state.ledger import Copy
    from shardctl.topology.model import Node, ShardId, Topology


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
    """A retired schema; `shard` is None if the topology has no shard of that name.

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
        dates = {"ended": ledger.written(self.ended), "due": ledger.written(self.due)}
        return asdict(self) | dates


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
            "slots": [asdict(slot) for slot in self.slots],
            "standbys": [asdict(standby) for standby in self.standbys],
            "disk_free_bytes": self.disk.free_bytes if self.disk else None,
            "disk_total_bytes": self.disk.total_bytes if self.disk else None,
            "disk_error": self.disk_error,
            "error": self.error,
        }


QUERIES = queries.load("shardctl.checks", "status.sql")

_LOCK_TIMEOUT = "200ms"
_ATTEMPTS = 3
_POLL_S = 0.1


def look(topology: Topology, node: Node, *, sample_s: float, whole: bool) -> NodeStatus:
    """Ask one node everything; what keeps it from an answer is in the result.

    Transactions are counted twice, `sample_s` apart; 0 leaves them out. Unless `whole`, shards are
    neither measured nor is it seen which are read-only, and the disk is not measured.
    """
    try:
        session = connect(
            node, topology.database, purpose=lock.purpose("status"), autocommit=True, observing=True
        )
    except NodeUnavailable as error:
        state = State.down if node.shards else State.absent
        return NodeStatus(node.name, state, node.shards, error=error.reason)
    with session:
        try:
            only_read(session)
            # In one transaction, so that our own questions do not look like load.
            with session.transaction():
                found = _read(topology, node, session, whole=whole)
            found = replace(found, tps=_tps(session, sample_s))
        except psycopg.Error as error:  # the server went away, or answered with an error
            state = State.down if session.closed else State.unreadable
            return NodeStatus(node.name, state, node.shards, error=reason_of(error))
    try:
        return replace(found, disk=_disk(node)) if whole else found
    except ShardctlError as error:
        return replace(found, disk_error=error.message)


def wait(until: float) -> None:
    """Wait until a moment of the monotonic clock, in s, or for Ctrl-C."""
    while (left := until - time.monotonic()) > 0 and not fanout.interrupted():
        time.sleep(min(left, _POLL_S))


def _tps(session: Connection, sample_s: float) -> float | None:
    """Count ended transactions a second; None where the statistics were reset in between."""
    if sample_s <= 0:
        return None
    began = time.monotonic()
    (before,) = queries.one(session, QUERIES["transactions"])
    wait(began + sample_s)
    (after,) = queries.one(session, QUERIES["transactions"])
    ended, elapsed = int(after - before), time.monotonic() - began
    return ended / elapsed if ended >= 0 else None


def only_read(session: Connection) -> None:
    """Let a session only read, and wait for no lock on a table for long."""
    session.execute("SET default_transaction_read_only TO on")
    session.execute("SELECT set_config('lock_timeout', %s, false)", (_LOCK_TIMEOUT,))


def _read(topology: Topology, node: Node, session: Connection, *, whole: bool) -> NodeStatus:
    in_recovery, version, uptime_s, size = queries.one(session, QUERIES["server"])
    (readable,) = queries.one(session, QUERIES["readable"])
    clients = queries.one(session, QUERIES["sessions"])
    state = cluster.read(session) if cluster.is_present(session) else None
    error = says = None
    if state is not None and (state.cluster, state.node) != (topology.cluster, node.name):
        error = f"the server there is node {state.node} of cluster {state.cluster}"
        says = NodeName(state.node) if state.cluster == topology.cluster else None
    # A newer journal may have other columns.
    known = state if readable and state is not None and state.format <= FORMAT else None
    wanted = {topology.schema(shard): shard for shard in node.shards} if whole else {}
    found = read_schemas(session, list(wanted))
    live = sorted((wanted[schema], schema) for schema in found if schema in wanted)
    rows = [found[schema][1] for _, schema in live]
    marks = read_only.marks(session, [schema for _, schema in live])
    return NodeStatus(
        name=node.name,
        state=State.up,
        owned=node.shards,
        error=error,
        says=says,
        role="standby" if in_recovery else "primary",
        version=version.split()[0],
        uptime_s=uptime_s,
        map_version=state.map_version if state else None,
        sizes={shard: found[schema][0] for shard, schema in live},
        read_only={wanted[schema]: mark for schema, mark in marks.items()},
        retired=_retired(topology, {s: found[s][0] for s in sorted(found) if s not in wanted}),
        size_bytes=size,
        rows=sum(n for n in rows if n is not None) if any(n is not None for n in rows) else None,
        sessions=clients[0],
        idle_in_transaction=clients[1],
        slots=tuple(Slot(*slot) for slot in session.execute(QUERIES["slots"])),
        standbys=tuple(Standby(*standby) for standby in session.execute(QUERIES["standbys"])),
        journal=ledger.copies(session, topology, node.name, known),
        map=cluster.read_map(session) if whole and known is not None and error is None else {},
    )


def read_schemas(
    session: Connection, schemas: list[str]
) -> dict[str, tuple[int | None, int | None]]:
    """Measure schemas: bytes and estimated rows of each that exists, and of all retired ones.

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
    """Return which shard each retired schema is of, by its name."""
    shards = {}
    for move in {schema[-8:] for schema in sizes}:
        for shard in topology.owners():
            shards[names.retired(topology.schema(shard), move)] = shard
    return tuple(
        Retired(schema, shards.get(schema), schema[-8:], size) for schema, size in sizes.items()
    )


def _disk(node: Node) -> Disk | None:
    """Measure the file system of a node's data directory; None where no file gives it.

    Other tablespaces, and a WAL directory elsewhere, are not looked at. Raises what its host
    raises.
    """
    if node.data_directory is None:
        return None
    host = host_of(node)
    user = accounts.account_on(host, node.os_user)
    total, free = files.disk(host, node.data_directory, user=user)
    return Disk(free_bytes=free, total_bytes=total)
