"""Look at the fleet as it is: nodes and what they do, poolers, moves."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.rows import dict_row

from shardctl import fanout
from shardctl.access import read_only
from shardctl.errors import ShardctlError
from shardctl.hosts import accounts, files
from shardctl.hosts.reach import host_of
from shardctl.ids import times
from shardctl.libpq import reason_of
from shardctl.pgbouncer.console import Console, waited_s
from shardctl.postgres import queries
from shardctl.postgres.connection import NodeUnavailable, connect
from shardctl.state import cluster, ledger, lock
from shardctl.state.cluster import FORMAT
from shardctl.topology import names, ranges
from shardctl.topology.model import NodeName

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from shardctl.access.read_only import Mark
    from shardctl.fanout import Progress
    from shardctl.pgbouncer.console import Row
    from shardctl.postgres.connection import Connection
    from shardctl.state.ledger import Copy, Entry
    from shardctl.topology.model import Node, Pooler, PoolerName, ShardId, Topology

QUERIES = queries.load("shardctl.checks", "status.sql")

_POLL_S = 0.1
_SERVERS = ("sv_active", "sv_idle", "sv_used", "sv_tested", "sv_login")


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
class NodeStatus:
    """One node; None is what is unknown, which is everything where it is not up.

    `owned` are the shards that the topology gives to the node, and `sizes` has those of them
    that live there, in bytes (None: a lock forbade to look); `read_only` has those that are
    so, at least in part. `rows_estimate` is of
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
    uptime_s: int | None = None
    map_version: int | None = None
    sizes: Mapping[ShardId, int | None] = field(default_factory=dict)
    read_only: Mapping[ShardId, Mark] = field(default_factory=dict)
    retired: tuple[Retired, ...] = ()
    size_bytes: int | None = None
    rows_estimate: int | None = None
    sessions: int | None = None
    idle_in_transaction: int | None = None
    tps: float | None = None
    slots: tuple[Slot, ...] = ()
    standbys: tuple[Standby, ...] = ()
    disk_free_bytes: int | None = None
    """Of the file system on which the data directory is."""
    disk_total_bytes: int | None = None
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
        hidden = ("says", "sizes", "journal", "map")
        shown = (one.name for one in fields(self) if one.name not in hidden)
        return {name: getattr(self, name) for name in shown} | {
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
            "slots": [asdict(slot) for slot in self.slots],
            "standbys": [asdict(standby) for standby in self.standbys],
        }


@dataclass(frozen=True, slots=True)
class PoolerStatus:
    """One pooler; `error` explains why its console cannot be used, and then nothing else is known.

    `clients` are served or wait, `waiting` are those that wait for a server, `longest_wait_ms`
    is how long the first of them has. `paused` names aliases, of other databases too; all of
    them where the whole pooler is paused. `waits_for` are the clients in transactions on those, for
    whose ends a PAUSE waits.
    """

    name: PoolerName
    error: str | None = None
    version: str | None = None
    clients: int | None = None
    waiting: int | None = None
    servers: int | None = None
    longest_wait_ms: float | None = None
    paused: tuple[str, ...] = ()
    waits_for: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Give the shape of docs/reference/json.md."""
        return asdict(self) | {"state": "up" if self.error is None else "down"}


@dataclass(frozen=True, slots=True)
class Status:
    """The fleet at a moment; `nodes` are in the topology's order.

    `moves` are all that a journal has, those of long ago too; the newest comes first.
    """

    cluster: str
    time: datetime
    nodes: tuple[NodeStatus, ...]
    poolers: tuple[PoolerStatus, ...] = ()
    moves: tuple[Entry, ...] = ()
    stale: str = ""
    """What the newest map has otherwise than the topology."""

    @property
    def unclosed(self) -> tuple[Entry, ...]:
        """The moves with something left to do: running, unfinished, unconfirmed, reversible."""
        return tuple(
            one
            for one in self.moves
            if one.open
            or one.state == "unconfirmed"
            or (one.reverse is not None and one.reverse.can)
        )

    def slot_of(self, move: Entry) -> Slot | None:
        """Give the replication slot of a move on its source; None where there is none."""
        there = (node for node in self.nodes if node.name == move.move.source)
        return next((s for node in there for s in node.slots if s.name == move.slot), None)

    @property
    def map_version(self) -> int | None:
        """The newest version of the map that a node has; None where no node has one."""
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
            "moves": [self._move_as_json(move) for move in self.unclosed],
        }

    def _move_as_json(self, move: Entry) -> dict[str, Any]:
        """Return a move as JSON, with the lag of its target."""
        slot = self.slot_of(move)
        return {
            **move.as_json(),
            "progress": move.copied(),
            "lag_bytes": slot.lag_bytes if slot else None,
            "wal_held_bytes": slot.retained_bytes if slot else None,
        }


def observe(
    topology: Topology, *, sample_s: float, progress: Progress, whole: bool = True
) -> Status:
    """Look at all nodes in parallel; nodes that cannot be looked at explain why.

    Transactions are counted twice, at least `sample_s` apart; 0 leaves them out. What shardctl
    itself asks is a transaction or two among them, and a busy session reports its own about once a
    second only, so a shorter sample is coarse.
    Unless `whole`, what takes long is left out: sizes of shards, which are read-only, disks.
    """
    now = datetime.now(UTC)

    def look(node: Node) -> NodeStatus:
        progress.expect(node.name, "reading status", 1)
        found = look_at(topology, node, sample_s=sample_s, whole=whole)
        progress.advance(node.name)
        return found

    # All at once, or the last ones would wait for the samples of the first.
    nodes = fanout.collect(topology.nodes.values(), look, width=len(topology.nodes)).every()
    moves = ledger.entries(copy for node in nodes for copy in node.journal)
    poolers = topology.poolers.values()
    return Status(
        cluster=topology.cluster,
        time=now,
        nodes=tuple(_with_moves(node, moves) for node in nodes),
        poolers=tuple(fanout.collect(poolers, partial(look_at_pooler, topology)).every()),
        moves=moves,
        stale=_stale(topology, nodes, moves),
    )


def _stale(topology: Topology, nodes: Sequence[NodeStatus], moves: Sequence[Entry]) -> str:
    """Say which shards the newest map gives to other nodes than an old topology does.

    Those of a move in its cutover are left out: its file is written last.
    """
    newest = max(nodes, key=lambda node: (node.map_version or 0) if node.map else 0)
    between = {shard for one in moves if one.changing_hands for shard in one.move.shards}
    here = topology.owners()
    shards = [s for s, owner in newest.map.items() if s not in between and here.get(s) != owner]
    by_map = f"map version {newest.map_version} gives shards {ranges.of(shards)} to other nodes"
    return f"{by_map} than {topology.path.name}" if shards else ""


def _with_moves(node: NodeStatus, moves: Sequence[Entry]) -> NodeStatus:
    """Report a node what only the journals of all nodes know."""
    if any(move.clones(node.name, node.says) for move in moves):
        # Until it has claimed its shards it is its source to the letter, as it should be.
        return replace(node, error=None, retired=())
    known = {entry.move.id: entry for entry in moves}
    return replace(node, retired=tuple(_when(one, known.get(one.move)) for one in node.retired))


def _when(one: Retired, move: Entry | None) -> Retired:
    return one if move is None else replace(one, ended=move.move.ended, due=move.due)


def look_at(topology: Topology, node: Node, *, sample_s: float, whole: bool) -> NodeStatus:
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
    if not whole or node.data_directory is None:
        return found
    try:  # without other tablespaces, or a WAL directory elsewhere
        host = host_of(node)
        account = accounts.account_on(host, node.os_user)
        total, free = files.disk(host, node.data_directory, user=account)
    except ShardctlError as error:
        return replace(found, disk_error=error.message)
    return replace(found, disk_free_bytes=free, disk_total_bytes=total)


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
    return round(ended / elapsed, 1) if ended >= 0 else None


def only_read(session: Connection) -> None:
    """Let a session only read, and wait for no lock on a table for long."""
    session.execute("SET default_transaction_read_only TO on; SET lock_timeout TO '200ms'")


def _read(topology: Topology, node: Node, session: Connection, *, whole: bool) -> NodeStatus:
    with session.cursor(row_factory=dict_row) as cursor:
        (shown,) = cursor.execute(QUERIES["node"]).fetchall()
    (readable,) = queries.one(session, QUERIES["readable"])
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
    rows = [rows for _, schema in live if (rows := found[schema][1]) is not None]
    marks = read_only.marks(session, [schema for _, schema in live])
    return NodeStatus(
        name=node.name,
        state=State.up,
        owned=node.shards,
        error=error,
        says=says,
        map_version=state.map_version if state else None,
        sizes={shard: found[schema][0] for shard, schema in live},
        read_only={wanted[schema]: mark for schema, mark in marks.items()},
        retired=_retired(topology, {s: found[s][0] for s in sorted(found) if s not in wanted}),
        rows_estimate=sum(rows) if rows else None,
        slots=tuple(Slot(*slot) for slot in session.execute(QUERIES["slots"])),
        standbys=tuple(Standby(*standby) for standby in session.execute(QUERIES["standbys"])),
        journal=ledger.copies(session, topology, node.name, known),
        map=cluster.read_map(session) if whole and known is not None and error is None else {},
        **shown,
    )


def read_schemas(
    session: Connection, schemas: list[str]
) -> dict[str, tuple[int | None, int | None]]:
    """Measure schemas: bytes and estimated rows of each that exists, and of all retired ones.

    Tries again where a lock came after the look for locks; in the end it is the caller's error.
    """
    for is_last in (False, False, True):
        try:
            with session.transaction():
                found = session.execute(QUERIES["schemas"], {"schemas": schemas})
                return {name: (size, rows) for name, size, rows in found}
        except psycopg.errors.LockNotAvailable:
            if is_last:
                raise
    raise AssertionError  # pragma: no cover  # the last attempt raises


def _retired(topology: Topology, sizes: Mapping[str, int | None]) -> tuple[Retired, ...]:
    """Return which shard each retired schema is of, by its name."""
    shards = {}
    for move in {schema[-8:] for schema in sizes}:
        for shard in topology.owners():
            shards[names.retired(topology.schema(shard), move)] = shard
    return tuple(
        Retired(schema, shards.get(schema), schema[-8:], size) for schema, size in sizes.items()
    )


def look_at_pooler(topology: Topology, pooler: Pooler) -> PoolerStatus:
    """Ask one pooler's console; what keeps it from an answer is in the result."""
    try:
        with Console(pooler, topology.database, purpose=lock.purpose("status")) as console:
            pools = console.pools()
            offered = console.databases().values()
            held = console.held()
            paused = tuple(one.name for one in offered if held or one.paused)
            return PoolerStatus(
                name=pooler.name,
                version=console.version(),
                clients=_sum(pools, ("cl_active", "cl_waiting")),
                waiting=_sum(pools, ("cl_waiting",)),
                servers=_sum(pools, _SERVERS),
                longest_wait_ms=round(max(map(waited_s, pools), default=0.0) * 1000, 1),
                paused=paused,
                waits_for=tuple(_in_transaction(console, paused)) if paused else (),
            )
    except ShardctlError as error:
        return PoolerStatus(pooler.name, error=getattr(error, "reason", error.message))


def _in_transaction(console: Console, paused: Collection[str]) -> Iterator[str]:
    """Name the clients of paused databases that have a server, which they keep until COMMIT."""
    for one in console.clients():
        if one["database"] in paused and one["link"]:
            yield f"{one['user']} on {one['database']} from {one['addr']}:{one['port']}"


def _sum(pools: Iterable[Row], columns: Iterable[str]) -> int:
    return sum(int(pool.get(column) or 0) for pool in pools for column in columns)
