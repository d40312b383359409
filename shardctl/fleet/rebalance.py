"""Plans of `rebalance`: what nodes report, which moves follow, and carrying them out."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from shardctl import inputs
from shardctl.checks import loads
from shardctl.errors import Misused, Refused, UsageError, together
from shardctl.fleet import balance
from shardctl.fleet.balance import Fleet, Place
from shardctl.moves import prediction, wal
from shardctl.moves.preflight.shards import COPY_RATE
from shardctl.provision import maps
from shardctl.state import cluster, observer
from shardctl.topology import ranges, routes
from shardctl.topology.model import Node, NodeName, ShardId, Topology  # noqa: TC001  # types of fields

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from shardctl.checks.loads import Loads
    from shardctl.postgres.connection import Connection

SIZE, TPS, COUNT = "size", "tps", "count"
"""What is balanced: bytes, rows written and scans begun a second, or the number of shards."""
_MB = 1024 * 1024
_PARTS = 1000
"""The planner counts whole numbers: operations in 1,000 s."""
_COPIED = 1.1
"""How much room a copy needs, in parts of the shards' size: as preflight has it."""
_MOST = 1 << 24
_SETTINGS = """
    SELECT name, setting FROM pg_settings WHERE name IN ('data_directory', 'max_wal_size')
"""


@dataclass(frozen=True, slots=True)
class NodeShare:
    """A node before and after the moves; `load` and `share` are in the unit of what is balanced.

    `weight` is None for a node that was left out, and `room_bytes` where that is unknown.
    """

    name: NodeName
    address: str
    weight: float | None
    room_bytes: int | None
    shards: tuple[ShardId, ...]
    size_bytes: int = 0
    size_bytes_after: int = 0
    load: float = 0
    load_after: float = 0
    share: float = 0


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """Shards that go from one node to another in one move."""

    source: NodeName
    target: NodeName
    shards: tuple[ShardId, ...]
    size_bytes: int
    predicted_s: float


@dataclass(frozen=True, slots=True)
class Plan:
    """Moves in their order, and what they were planned from; `stuck` shards have no room anywhere.

    The fields have the names and the shape of docs/reference/json.md.
    """

    cluster: str
    by: str
    threshold: float
    nodes: tuple[NodeShare, ...]
    moves: tuple[PlannedMove, ...]
    stuck: tuple[ShardId, ...]
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Give the shape of docs/reference/json.md."""
        return asdict(self)


def read(path: Path) -> Plan:
    """Read a plan that `as_json` has written; raises plan_unreadable."""
    try:
        text = inputs.read(path, _MOST)
        return TypeAdapter(Plan).validate_python(json.loads(text))
    except (OSError, ValueError, RecursionError) as error:  # pydantic's and json's are ValueErrors
        why = error.strerror if isinstance(error, OSError) else "it is not a plan of rebalance"
        raise Misused(
            "plan_unreadable",
            f"{path}: {why}",
            hint="make one with `shardctl rebalance plan --out FILE`",
        ) from error


def plan(
    topology: Topology,
    weights: Mapping[str, float],
    *,
    by: str = SIZE,
    threshold: float = 0.05,
    max_moves: int | None = None,
    sample: timedelta = timedelta(),
    purpose: str,
) -> Plan:
    """Ask all nodes, and plan moves; changes nothing.

    The threshold is a part of a node's share. With `by` TPS, operations are counted during
    `sample`. Raises UsageError, shards_unmeasured, no_load, and what `maps.agreed` raises.
    """
    for name in weights:
        routes.node(topology, name)
    maps.agreed(topology, purpose=purpose)
    sample_s = sample.total_seconds() if by == TPS else 0.0
    measured = loads.measure(topology, sample_s=sample_s, purpose=purpose)
    sizes = sizes_of(measured)
    asked = observer.ask(topology, partial(_room, topology), purpose=purpose)
    if asked.problems:
        raise together(asked.problems)
    notes = [f"node {name} is left out: {e.message}" for name, e in asked.errors.items()]
    rooms = {name: room for name, room in asked.values.items() if room is not None}
    if strangers := [name for name in asked.values if name not in rooms]:
        notes.append(
            f"nodes without schema shardctl are left out: {', '.join(strangers)}; `shardctl init` "
            "makes them members of the cluster"
        )
    places = {name: Place(weights.get(name, 1.0), room) for name, room in rooms.items()}
    if notes and not any(place.weight for place in places.values()):
        raise UsageError("no node is left that can take the shards", hint="; ".join(notes))
    load, unit = _load(measured, by)
    fleet = Fleet(topology.owners(), load, sizes, places)
    found = balance.plan(fleet, threshold=threshold, max_moves=max_moves)
    moves = tuple(_planned(step, sizes) for step in found.steps)
    gained: Counter[NodeName] = Counter()
    for move in moves:
        gained[move.target] += move.size_bytes
        gained[move.source] -= move.size_bytes

    def share(node: Node) -> NodeShare:
        name, place = node.name, places.get(node.name)
        size = sum(sizes[shard] for shard in node.shards)
        return NodeShare(
            name,
            f"{node.host}:{node.port}",
            weight=place.weight if place else None,
            room_bytes=int(place.room) if place and place.room != math.inf else None,
            shards=node.shards,
            size_bytes=size,
            size_bytes_after=size + gained[name],
            load=found.before.get(name, 0) / unit,
            load_after=found.after.get(name, 0) / unit,
            share=found.shares.get(name, 0) / unit,
        )

    nodes = tuple(map(share, topology.nodes.values()))
    return Plan(topology.cluster, by, threshold, nodes, moves, found.stuck, tuple(notes))


def sizes_of(measured: Loads) -> dict[ShardId, int]:
    """Give the shards' sizes; refuse those that are not where they should be, or are locked."""
    if measured.errors:
        raise together([*measured.errors.values()])
    unknown = [one.shard for one in measured.shards if one.size_bytes is None]
    if measured.missing or unknown:
        why = "they have no schema on their node" if measured.missing else "tables are locked"
        raise Refused(
            "shards_unmeasured",
            f"shards {ranges.of(measured.missing or unknown)} cannot be measured: {why}",
            hint="run `shardctl verify` for missing schemas; wait for the session that holds an "
            "AccessExclusiveLock (pg_locks), then try again",
        )
    return {one.shard: one.size_bytes or 0 for one in measured.shards}


def _room(topology: Topology, session: Connection, node: Node) -> float | None:
    """Return how many bytes of shards may come to a node; None if it is not a member.

    Infinite where its host does not report its disk. As preflight's, without the WAL.
    """
    row = cluster.read(session) if cluster.is_present(session) else None
    if row is None or (row.cluster, row.node) != (topology.cluster, node.name):
        return None
    settings = dict(session.execute(_SETTINGS).fetchall())
    free, _ = wal.free_bytes(node, settings.get("data_directory"), inside="base/.")
    if free is None:
        return math.inf
    return max(0.0, (free - int(settings["max_wal_size"]) * _MB) / _COPIED)


def _load(measured: Loads, by: str) -> tuple[dict[ShardId, int], int]:
    """Give each shard's load in whole numbers, and how many of them are one; raises no_load."""
    if by == SIZE:
        return {one.shard: one.size_bytes or 0 for one in measured.shards}, 1
    if by == COUNT:
        return {one.shard: 1 for one in measured.shards}, 1
    found = {one.shard: round(_PARTS * (one.operations_per_s or 0)) for one in measured.shards}
    if not any(found.values()):
        raise Refused(
            "no_load",
            "no shard was read or written while shardctl counted",
            hint="run it under load, or count longer: --sample 1m",
        )
    return found, _PARTS


def _planned(step: balance.Step, sizes: Mapping[ShardId, int]) -> PlannedMove:
    """Give a move with its size and its time: copied once, and compared twice."""
    size = sum(sizes[shard] for shard in step.shards)
    took_s = prediction.BEGUN_S + size / COPY_RATE + 2 * size / prediction.COMPARE_RATE
    return PlannedMove(step.source, step.target, step.shards, size, round(took_s, 1))


def require_same(plan: Plan, topology: Topology) -> None:
    """Refuse a plan whose fleet has changed, except by its own moves; raises plan_outdated."""
    found = list(_changes(plan, topology))
    if found:
        raise outdated(found)


def outdated(changes: list[str]) -> Refused:
    """Report what has changed since a plan was made."""
    return Refused(
        "plan_outdated",
        f"the fleet has changed since the plan was made: {'; '.join(changes)}",
        hint="make another plan with `shardctl rebalance plan`",
    )


def _changes(plan: Plan, topology: Topology) -> Iterator[str]:
    if plan.cluster != topology.cluster:
        yield f"the plan is of cluster {plan.cluster}, and this is {topology.cluster}"
        return
    then = dict.fromkeys(node for move in plan.moves for node in (move.source, move.target))
    then |= {node.name: node.address for node in plan.nodes}
    now = {name: f"{node.host}:{node.port}" for name, node in topology.nodes.items()}
    for name in {**then, **now}:
        if name not in now:
            yield f"node {name} is not in the topology"
        elif then.get(name) != now[name]:
            yield f"node {name} was at {then.get(name) or 'no address'} and is at {now[name]}"
    targets = {shard: move.target for move in plan.moves for shard in move.shards}
    planned = {shard: node.name for node in plan.nodes for shard in node.shards}
    owners = topology.owners()
    if moved := [
        shard
        for shard in sorted({*planned, *owners})
        if owners.get(shard) not in (planned.get(shard), targets.get(shard))
    ]:
        yield f"shards {ranges.of(moved)} have other owners"
