"""Predicts how long clients will wait in a cutover, from measured times of its parts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from shardctl.moves import cutover, fences
from shardctl.moves import plan as planning
from shardctl.moves.paused_poolers import CONSOLES
from shardctl.moves.refusals import PauseTooShort
from shardctl.moves.sub_step import round_trips_ms
from shardctl.pgbouncer import cost

if TYPE_CHECKING:
    from shardctl.moves.plan import MovePlan
    from shardctl.moves.round_trips import RoundTrips
    from shardctl.topology.model import Topology

FIXED_MS = 70.0
"""A cutover's time without shards, aliases and load (`moves show` prints each part):
promote 26, claim and open 22, route 5, pause and snapshot 4 each, fence 3, drain, mark and decide
2 each. Under the loads of `make bench` it takes twice that."""
STREAMED_MS = 25.0
"""The same for a streamed move, whose target is a primary all the time."""
MOVED_MS = 0.17
"""For each moved shard: its renames, its new id block, its locks."""
STAYING_MS = 0.02
"""For each shard that stays: its rename on the target."""
READING_MS = 15.0
"""The part that readers wait for, where writes are refused: pause, close, route, new blocks."""
TABLE_MS = 0.5
"""For each moved table, where writes are refused: creating and dropping its trigger."""
PAUSED_MS = 0.07
"""For each alias of the slowest pooler that is paused and resumed."""
OFFERED_MS = 0.02
"""For each alias that it offers: SHOW DATABASES and the comparison, without RELOAD."""
SSH_MS = 5.0
"""For a pooler over ssh, besides the round trip: replacing its file."""
RESERVED_MS = 400.0
"""Reserve of the budget: 300 must remain at the decision, and it starts before the pause."""

_SSH_TRIPS = 1


def pause_ms(topology: Topology, plan: MovePlan, round_trips: RoundTrips) -> float:
    """Estimate how long clients will wait, in ms; `topology` is the one before the move.

    Where writes are refused, only readers count. A busy machine takes several times as long. PAUSE
    also waits for the longest running transaction, which is unknown before.
    """
    moved = MOVED_MS * len(plan.schemas)
    poolers_ms = _poolers_ms(topology, plan, round_trips)
    fixed = READING_MS if fences.of(plan).refuses_writes else _fixed_ms(topology, plan)
    waiting = cutover.of(plan).between("pause", "route")
    return fixed + moved + poolers_ms + round_trips_ms(round_trips, waiting)


def refused_ms(
    topology: Topology, plan: MovePlan, round_trips: RoundTrips, tables: int
) -> float | None:
    """Estimate how long writes to `tables` tables will be refused; None where they wait."""
    if not fences.of(plan).refuses_writes:
        return None
    shards = MOVED_MS * len(plan.schemas) + STAYING_MS * len(planning.leaving(topology, plan))
    far = round_trips_ms(round_trips, cutover.of(plan).between("fence", "route"))
    return FIXED_MS + shards + TABLE_MS * tables + _poolers_ms(topology, plan, round_trips) + far


def _fixed_ms(topology: Topology, plan: MovePlan) -> float:
    """Estimate what nodes take but for the moved shards."""
    if plan.fence == planning.LOCKED_RENAME:  # nothing that stays is on the target
        return STREAMED_MS
    return FIXED_MS + STAYING_MS * len(planning.leaving(topology, plan))


def _poolers_ms(topology: Topology, plan: MovePlan, round_trips: RoundTrips) -> float:
    """Estimate the time of the slowest pooler."""
    poolers = [0.0]
    for one in topology.poolers.values():
        paused, size = len(planning.paused(topology, plan, one)), planning.offered(topology, one)
        over_ssh = one.ssh is not None
        trips = math.ceil(paused / CONSOLES) - 1 + (_SSH_TRIPS if over_ssh else 0)
        poolers.append(
            PAUSED_MS * paused
            + OFFERED_MS * size
            + cost.reload_ms(size)
            + (SSH_MS if over_ssh else 0.0)
            + trips * round_trips.pooler
        )
    return max(poolers)


def budget_ms(
    topology: Topology, plan: MovePlan, round_trips: RoundTrips, tables: int = 0
) -> float:
    """Return the least `--max-pause` for a cutover, in ms.

    The budget starts before the first PAUSE, and some of it must remain at the decision. `tables`
    is the number of moved tables, which counts where writes are refused.
    """
    first = "fence" if fences.of(plan).refuses_writes else "pause"
    before = round_trips_ms(round_trips, cutover.of(plan).before(first))
    return _unserved_ms(topology, plan, round_trips, tables) + RESERVED_MS + before


def require_time(
    topology: Topology, plan: MovePlan, round_trips: RoundTrips, tables: int = 0
) -> None:
    """Check that `--max-pause` is long enough for the prediction; raises PauseTooShort."""
    needed = budget_ms(topology, plan, round_trips, tables)
    if plan.options.max_pause_s * 1000 < needed:
        predicted = _unserved_ms(topology, plan, round_trips, tables)
        raise PauseTooShort(plan.options.max_pause_s, predicted, needed)


def _unserved_ms(topology: Topology, plan: MovePlan, round_trips: RoundTrips, tables: int) -> float:
    """Estimate how long writes are impossible."""
    refused = refused_ms(topology, plan, round_trips, tables)
    return pause_ms(topology, plan, round_trips) if refused is None else refused
