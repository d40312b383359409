"""Make the plan of a rebalance or a drain: look at the fleet, plan, predict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.balance import group, look, planner
from shardctl.balance.group import GroupPlan, PlannedMove
from shardctl.errors import UsageError
from shardctl.moves import plan as planning
from shardctl.moves import prediction
from shardctl.moves.preflight import wal as copying
from shardctl.moves.round_trips import RoundTrips
from shardctl.state import lock
from shardctl.topology.model import NodeName

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from shardctl.balance.fleet import Balance
    from shardctl.balance.look import By, Seen
    from shardctl.moves.plan import Options
    from shardctl.state.rebalances import Known
    from shardctl.topology.model import Topology

MOVE = "rebalance"


def rebalance(
    topology: Topology,
    options: Options,
    *,
    by: By,
    sample_s: float,
    threshold: float,
    weights: Mapping[str, float],
    rooms: Mapping[str, int],
    most: int | None,
    leaving_out: Collection[str] = (),
) -> tuple[GroupPlan, Known]:
    """Plan an even fleet; changes nothing. Nodes that are left out neither give nor get shards.

    Raises UsageError for unknown nodes and for weights of drained ones, last_node, and what
    `look.look` raises.
    """
    given = {_known(topology, name): weight for name, weight in weights.items()}
    seen = _look(topology, by, sample_s, given, rooms)
    for name in given.keys() & seen.known.drained.keys():
        raise UsageError(
            f"node {name} is drained, so it has no weight",
            hint=f"run `shardctl node drain {name} --cancel` first, or leave its weight out",
        )
    seen = look.without(seen, {_known(topology, name) for name in leaving_out})
    look.require_takers(seen.nodes, seen.shards, "nothing can be planned")
    balance = planner.plan(seen.nodes, seen.shards, threshold=threshold, most=most)
    return _plan(topology, options, seen, balance, by=by, drain=None), seen.known


def drain(
    topology: Topology, options: Options, node: str, *, by: By, rooms: Mapping[str, int]
) -> tuple[GroupPlan, Known]:
    """Plan to empty a node; changes nothing.

    Raises UsageError for unknown nodes, last_node, and what `look.look` raises.
    """
    name = _known(topology, node)
    seen = look.emptied(_look(topology, by, 0.0, {}, rooms), name)
    balance = planner.plan(
        [one for one in seen.nodes if one.weight > 0 or one.name == name],
        [one for one in seen.shards if one.node == name or one.node not in seen.known.drained],
        emptying=True,
    )
    return _plan(topology, options, seen, balance, by=by, drain=name), seen.known


def _look(
    topology: Topology,
    by: By,
    sample_s: float,
    weights: Mapping[NodeName, float],
    rooms: Mapping[str, int],
) -> Seen:
    given = {_known(topology, name): room for name, room in rooms.items()}
    purpose = lock.purpose(MOVE)
    return look.look(
        topology, by=by, sample_s=sample_s, weights=weights, rooms=given, purpose=purpose
    )


def _plan(
    topology: Topology,
    options: Options,
    seen: Seen,
    balance: Balance,
    *,
    by: By,
    drain: NodeName | None,
) -> GroupPlan:
    return group.of(
        topology,
        balance,
        list(_predicted(topology, options, seen, balance)),
        by=by.value,
        drain=drain,
        drained=seen.known.drained,
        notes=seen.notes,
    )


def _predicted(
    topology: Topology, options: Options, seen: Seen, balance: Balance
) -> Iterator[PlannedMove]:
    """Predict the time and the pause of each move, in the fleet as it is by then."""
    rate = copying.rate(options.max_rate)
    for one in balance.moves:
        decided = planning.make(topology, one.shards, one.target, 0, options)
        decided = planning.streamed(decided)
        trips = RoundTrips.of(
            source=seen.away_ms[one.source], target=seen.away_ms[one.target], pooler=seen.pooler_ms
        )
        tables = sum(seen.tables.get(shard, 0) for shard in one.shards)
        yield PlannedMove(
            one.source,
            one.target,
            one.shards,
            one.bytes,
            one.bytes / rate,
            prediction.pause_ms(topology, decided, trips, tables),
            one.why,
        )
        topology = planning.after(topology, decided)


def _known(topology: Topology, name: str) -> NodeName:
    if name not in topology.nodes:
        raise UsageError(f"unknown node {name!r}", hint=f"nodes: {', '.join(topology.nodes)}")
    return NodeName(name)
