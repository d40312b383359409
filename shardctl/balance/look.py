"""Look at the fleet for a plan: sizes and loads of shards, and the room of nodes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from shardctl import fanout
from shardctl.balance.fleet import NodeRoom, ShardLoad
from shardctl.errors import Refused, ShardctlError, together
from shardctl.moves import round_trips, wal
from shardctl.postgres import queries
from shardctl.provision import maps
from shardctl.state import cluster, identity, observer, rebalances, shard_loads
from shardctl.topology import ranges
from shardctl.topology.model import NodeName, ShardId

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from shardctl.postgres.connection import Connection
    from shardctl.state.rebalances import Kept, Known
    from shardctl.topology.model import Node, Topology

QUERIES = queries.load("shardctl.balance", "look.sql")

_MB = 1024 * 1024
_COPY = 1.1
"""What a shard needs on its target, of its size: as the preflight of a move wants it."""
_WIDTH = 16


class By(Enum):
    """What every node should have its share of."""

    size = "size"
    tps = "tps"
    count = "count"


@dataclass(frozen=True, slots=True)
class Seen:
    """The fleet as a plan needs it; `tables` are counts by shard, `away_ms` round trips."""

    nodes: tuple[NodeRoom, ...]
    shards: tuple[ShardLoad, ...]
    tables: Mapping[ShardId, int]
    away_ms: Mapping[NodeName, float]
    pooler_ms: float
    known: Known
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _NodeSeen:
    kept: Kept
    tables: Mapping[ShardId, int]
    directory: str | None
    wal_bytes: int
    away_ms: float
    member: bool


def look(
    topology: Topology,
    *,
    by: By,
    sample_s: float,
    weights: Mapping[NodeName, float],
    rooms: Mapping[NodeName, int],
    purpose: str,
) -> Seen:
    """Ask all nodes; changes nothing.

    Nodes without shards that are away or no members are left out, with a note. `rooms` are bytes
    that nodes can receive, for those whose disk should not decide. Raises what `maps.version`
    raises, the problems of all other nodes, size_unknown and load_unknown.
    """
    maps.version(topology, purpose=purpose)  # sizes of a stale topology's shards mean nothing
    asked = observer.ask(
        topology, lambda session, node: _node(topology, session, node), purpose=purpose
    )
    sampled = sample_s if by is By.tps else None
    loads = shard_loads.read(topology, purpose=purpose, sample_s=sampled)
    problems = {error.message: error for error in (*asked.problems, *loads.problems)}
    if problems:
        raise together(list(problems.values()))
    known = rebalances.together_of(
        (one.kept for one in asked.values.values()),
        old=[name for name, one in asked.values.items() if not one.kept.writable],
    )
    joined = {name: one for name, one in asked.values.items() if one.member}
    given = {name: 0.0 if name in known.drained else weights.get(name, 1.0) for name in joined}
    room, notes = _rooms(topology, joined, given, rooms)
    away = [name for name in topology.nodes if name not in joined]
    if away:
        notes.append(
            f"left out: {', '.join(away)}: not reachable, or not a member yet (`shardctl init` "
            "makes a node one)"
        )
    poolers = fanout.run(topology.poolers.values(), round_trips.of_machine, width=_WIDTH)
    return Seen(
        tuple(NodeRoom(name, given[name], room.get(name)) for name in joined),
        tuple(_shards(loads.loads, by)),
        {shard: count for one in joined.values() for shard, count in one.tables.items()},
        {name: one.away_ms for name, one in joined.items()},
        max((one.result() for one in poolers), default=0.0),
        known,
        tuple(notes),
    )


def _node(topology: Topology, session: Connection, node: Node) -> _NodeSeen:
    row = cluster.read(session) if cluster.is_present(session) else None
    if row is None or cluster.is_clone_of_a_move(session, node):
        return _NodeSeen(rebalances.Kept(), {}, None, 0, 0.0, member=False)
    identity.check(row, topology, node.name)
    directory, wal_mb = queries.one(session, QUERIES["settings"])
    counted = session.execute(QUERIES["tables"], {"node": node.name}).fetchall()
    return _NodeSeen(
        rebalances.kept(session),
        {ShardId(shard): tables for shard, tables in counted},
        directory,
        wal_mb * _MB,
        round_trips.shortest_ms(lambda: session.execute("SELECT 1")),
        member=True,
    )


def _rooms(
    topology: Topology,
    seen: Mapping[NodeName, _NodeSeen],
    weights: Mapping[NodeName, float],
    given: Mapping[NodeName, int],
) -> tuple[dict[NodeName, int], list[str]]:
    """Measure what nodes can receive; those whose disk cannot be measured have no limit."""
    asked = [name for name in seen if weights[name] > 0 and name not in given]

    def free(name: NodeName) -> int | None:
        node, directory = topology.nodes[name], seen[name].directory
        return wal.free_bytes(node, directory, inside="base/.")[0]

    found = dict(fanout.collect(asked, free, width=_WIDTH).values)
    room = {
        name: max(0, int((bytes_ - seen[name].wal_bytes) / _COPY))
        for name, bytes_ in found.items()
        if bytes_ is not None
    }
    unknown = [name for name in asked if name not in room]
    notes = []
    if unknown:
        notes.append(
            f"free space not measured: {', '.join(unknown)}: no limit counts there, unless you "
            "give one with --node-room"
        )
    return {**room, **given}, notes


def _shards(found: Sequence[shard_loads.ShardLoad], by: By) -> list[ShardLoad]:
    """Give the shards that the planner needs; raises size_unknown and load_unknown."""
    unsized = [one for one in found if one.bytes is None]
    unsampled = [one for one in found if by is By.tps and one.tps is None]
    problems: list[ShardctlError] = []
    if unsized:
        problems.append(
            Refused(
                "size_unknown",
                f"the size of shards {ranges.of(one.shard for one in unsized)} is unknown: their "
                "schema is missing, or a session holds an AccessExclusiveLock on a table",
                hint="run `shardctl verify`; find the session in pg_locks, then try again",
            )
        )
    if unsampled:
        problems.append(
            Refused(
                "load_unknown",
                f"the load of shards {ranges.of(one.shard for one in unsampled)} is unknown: their "
                "counters were reset during the sample",
                hint="try again",
            )
        )
    if problems:
        raise together(problems)
    return [
        ShardLoad(
            one.shard,
            one.node,
            {By.size: float(one.bytes or 0), By.tps: one.tps or 0.0, By.count: 1.0}[by],
            one.bytes or 0,
        )
        for one in found
    ]


def without(seen: Seen, names: Collection[NodeName]) -> Seen:
    """Give the fleet without some nodes and their shards."""
    return replace(
        seen,
        nodes=tuple(one for one in seen.nodes if one.name not in names),
        shards=tuple(one for one in seen.shards if one.node not in names),
    )


def emptied(seen: Seen, node: NodeName) -> Seen:
    """Give the fleet in which a node is to be empty; raises last_node and not_a_member."""
    if node not in {one.name for one in seen.nodes}:
        raise Refused(
            "not_a_member",
            f"node {node} is not reachable, or not a member of the cluster",
            hint="start it, or run `shardctl init`",
        )
    nodes = tuple(replace(n, weight=0.0) if n.name == node else n for n in seen.nodes)
    require_takers(nodes, seen.shards, f"node {node} cannot be drained")
    return replace(seen, nodes=nodes)


def require_takers(nodes: Sequence[NodeRoom], shards: Sequence[ShardLoad], what: str) -> None:
    """See that some node can have shards; raises last_node."""
    if shards and not any(one.weight > 0 for one in nodes):
        raise Refused(
            "last_node",
            f"{what}: no other node can have shards",
            hint="add a node to the topology and run `shardctl init`, or cancel another drain with "
            "`shardctl node drain NODE --cancel`",
        )
