"""The predicted wait of clients in a cutover, sub-step by sub-step."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from shardctl.moves import cutover, prediction
from shardctl.moves import plan as planning
from shardctl.moves.sub_step import round_trips_ms

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardctl.moves.plan import MovePlan
    from shardctl.moves.round_trips import RoundTrips
    from shardctl.topology.model import Topology

_FIXED: Mapping[str, Mapping[str, float]] = MappingProxyType({
    planning.METHOD: {
        "pause": 4, "fence": 3, "drain": 2, "mark": 2, "snapshot": 4, "decide": 2,
        "promote": 26, "claim": 22, "route": 5,
    },
    planning.STREAM: {
        "pause": 4, "fence": 6, "arrive": 2, "look": 2, "decide": 3, "claim": 3, "route": 5,
    },
})  # fmt: skip
"""How prediction.FIXED_MS and STREAMED_MS are made up."""
_REST: Mapping[str, float] = MappingProxyType(
    {"pause": 0.35, "look": 0.05, "decide": 0.25, "route": 0.35}
)
"""The shares of what a rehearsal does not measure."""


def ms(
    topology: Topology, plan: MovePlan, round_trips: RoundTrips, tables: int
) -> dict[str, float]:
    """Estimate what `prediction.pause_ms` does, for each sub-step for which clients wait."""
    found = _empty(plan) | dict(_FIXED[plan.method])
    renamed = prediction.RENAMED_MS * len(plan.schemas)
    moved = prediction.MOVED_MS * len(plan.schemas) - renamed
    found["fence"] += renamed
    found["claim"] += moved
    if plan.streams:
        found["fence"] += prediction.LOCKED_TABLE_MS * tables
    else:
        found["claim"] += prediction.STAYING_MS * len(planning.leaving(topology, plan))
        found["drain"] += prediction.CLONED_TABLE_MS * tables / 2
        found["claim"] += prediction.CLONED_TABLE_MS * tables / 2
    return _with_ways(found, topology, plan, round_trips)


def measured_ms(
    topology: Topology, plan: MovePlan, round_trips: RoundTrips, parts: Mapping[str, float]
) -> dict[str, float]:
    """Estimate what `prediction.measured_ms` does, from the parts that a rehearsal has measured."""
    rest = prediction.REST_MS + prediction.REST_COMMITS * parts["commit"]
    found = _empty(plan) | {name: share * rest for name, share in _REST.items()}
    renamed = prediction.RENAMED_MS * len(plan.schemas)
    # The look at the structure is in the fence's message.
    found["fence"] += parts["lock_and_mark"] + renamed + parts["structure"]
    # The target waits for the mark while the source looks at the structure.
    found["arrive"] += max(0.0, parts["arrive"] - parts["structure"])
    found["decide"] += parts["sequences"]
    found["claim"] += parts["claim"]
    return _with_ways(found, topology, plan, round_trips)


def _empty(plan: MovePlan) -> dict[str, float]:
    return {row.name: 0.0 for row in cutover.of(plan).between("pause", "route")}


def _with_ways(
    found: dict[str, float], topology: Topology, plan: MovePlan, round_trips: RoundTrips
) -> dict[str, float]:
    """Add what the poolers take, and the round trips."""
    pausing, routing = prediction.poolers_parts_ms(topology, plan, round_trips)
    found["pause"] += pausing
    found["route"] += routing
    for row in cutover.of(plan).between("pause", "route"):
        found[row.name] += round_trips_ms(round_trips, [row])
    return found
