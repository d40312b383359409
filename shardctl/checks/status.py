"""Look at the fleet as it is: nodes and what they do, poolers, moves."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from shardctl import fanout
from shardctl.checks import status_look
from shardctl.errors import ShardctlError
from shardctl.ids import times
from shardctl.pgbouncer.console import Console, waited_s
from shardctl.state import ledger, lock
from shardctl.topology import ranges
from shardctl.topology.model import NodeName

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from shardctl.checks.status_look import NodeStatus, Retired, Slot
    from shardctl.fanout import Progress
    from shardctl.pgbouncer.console import Row
    from shardctl.state.ledger import Entry
    from shardctl.topology.model import Node, Pooler, PoolerName, ShardId, Topology


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
    stale: tuple[str, ...] = ()
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
        found = status_look.look(topology, node, sample_s=sample_s, whole=whole)
        progress.advance(node.name)
        return found

    # All at once, or the last ones would wait for the samples of the first.
    nodes = fanout.collect(topology.nodes.values(), look, width=len(topology.nodes)).every()
    moves = ledger.entries(copy for node in nodes for copy in node.journal)
    return Status(
        cluster=topology.cluster,
        time=now,
        nodes=tuple(_with_moves(node, moves) for node in nodes),
        poolers=observe_poolers(topology),
        moves=moves,
        stale=tuple(_stale(topology, nodes, moves)),
    )


def _stale(
    topology: Topology, nodes: Sequence[NodeStatus], moves: Sequence[Entry]
) -> Iterator[str]:
    """Say which shards the newest map gives to other nodes than an old topology does.

    Those of a move in its cutover are left out: its file is written last.
    """
    newest = max(nodes, key=lambda node: (node.map_version or 0) if node.map else 0)
    between = {shard for one in moves if one.changing_hands for shard in one.move.shards}
    wanted = topology.owners()
    differing: dict[tuple[NodeName, NodeName], list[ShardId]] = {}
    for shard, owner in newest.map.items():
        here = wanted.get(shard, NodeName("no node"))
        if shard not in between and here != owner:
            differing.setdefault((owner, here), []).append(shard)
    for (owner, here), shards in differing.items():
        yield (
            f"map version {newest.map_version} gives shards {ranges.of(shards)} to {owner}, "
            f"{topology.path.name} to {here}"
        )


def _with_moves(node: NodeStatus, moves: Sequence[Entry]) -> NodeStatus:
    """Report a node what only the journals of all nodes know."""
    if any(move.clones(node.name, node.says) for move in moves):
        # Until it has claimed its shards it is its source to the letter, as it should be.
        return replace(node, error=None, retired=())
    known = {entry.move.id: entry for entry in moves}
    return replace(node, retired=tuple(_when(one, known.get(one.move)) for one in node.retired))


def _when(one: Retired, move: Entry | None) -> Retired:
    return one if move is None else replace(one, ended=move.move.ended, due=move.due)


_SERVERS = ("sv_active", "sv_idle", "sv_used", "sv_tested", "sv_login")


@dataclass(frozen=True, slots=True)
class PoolerStatus:
    """One pooler; `error` explains why its console cannot be used, and then nothing else is known.

    `clients` are served or wait, `waiting` are those that wait for a server, `longest_wait_s`
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
    longest_wait_s: float | None = None
    paused: tuple[str, ...] = ()
    waits_for: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Give the shape of docs/reference/json.md."""
        return {
            "name": self.name,
            "state": "up" if self.error is None else "down",
            "version": self.version,
            "clients": self.clients,
            "waiting": self.waiting,
            "servers": self.servers,
            "longest_wait_ms": None
            if self.longest_wait_s is None
            else round(self.longest_wait_s * 1000, 1),
            "paused": list(self.paused),
            "waits_for": list(self.waits_for),
            "error": self.error,
        }


def observe_poolers(topology: Topology) -> tuple[PoolerStatus, ...]:
    """Look at all poolers in parallel; one that cannot be looked at explains why."""
    poolers = topology.poolers.values()
    return tuple(fanout.collect(poolers, partial(_look_at_pooler, topology)).every())


def _look_at_pooler(topology: Topology, pooler: Pooler) -> PoolerStatus:
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
                longest_wait_s=max(map(waited_s, pools), default=0.0),
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
