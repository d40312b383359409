"""How long clients will wait in a cutover, by what its parts were measured to take."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from shardctl.moves import cutover, fences
from shardctl.moves import plan as planning
from shardctl.moves.gates import CONSOLES
from shardctl.moves.refusals import PauseTooShort
from shardctl.moves.sub_step import far_ms
from shardctl.pgbouncer import cost

if TYPE_CHECKING:
    from shardctl.moves.distance import Distance
    from shardctl.moves.plan import MovePlan
    from shardctl.topology.model import Topology

FIXED_MS = 70.0
"""What a cutover takes but for its shards and aliases, without a load (`moves show` tells each):
promote 26, claim and letting everybody in 22, route 5, pause and snapshot 4 each, fence 3, drain,
mark and decide 2 each. Under the loads of `make bench` it takes twice that."""
MOVED_MS = 0.17
"""For each moved shard: its renames, its new id block, its locks."""
STAYING_MS = 0.02
"""For each shard that stays: its rename on the target."""
READING_MS = 15.0
"""What of all that readers wait for, where writes are refused: pause, close, route, new blocks."""
TABLE_MS = 0.5
"""For each moved table, where writes are refused: its trigger is made, and later dropped."""
PAUSED_MS = 0.07
"""For each alias of the slowest pooler that is paused and resumed."""
OFFERED_MS = 0.02
"""For each alias that it offers: SHOW DATABASES, and comparing that; RELOAD comes on top."""
SSH_MS = 5.0
"""For a pooler that is reached by ssh, beside a round trip: its file takes its place there."""
RESERVED_MS = 400.0
"""Of the budget: 300 have to be left at the decision, and it begins a little before the pause."""

_SSH_TRIPS = 1


def pause_ms(topology: Topology, plan: MovePlan, distance: Distance) -> float:
    """Estimate how long clients will wait, in ms; `topology` is that of before the move.

    Where writes are refused, those that read. On a machine that has nothing else to do; a busy
    one takes several times as long. A pause also waits for the longest transaction that runs
    then, of which nothing is known before.
    """
    moved = MOVED_MS * len(plan.schemas)
    poolers_ms = _poolers_ms(topology, plan, distance)
    if fences.of(plan).refuses_writes:
        fixed = READING_MS
    else:
        fixed = FIXED_MS + STAYING_MS * len(planning.leaving(topology, plan))
    waiting = cutover.of(plan).between("pause", "route")
    return fixed + moved + poolers_ms + far_ms(distance, waiting)


def refused_ms(topology: Topology, plan: MovePlan, distance: Distance, tables: int) -> float | None:
    """Estimate how long writes to so many tables will be refused; None where they wait."""
    if not fences.of(plan).refuses_writes:
        return None
    shards = MOVED_MS * len(plan.schemas) + STAYING_MS * len(planning.leaving(topology, plan))
    far = far_ms(distance, cutover.of(plan).between("fence", "route"))
    return FIXED_MS + shards + TABLE_MS * tables + _poolers_ms(topology, plan, distance) + far


def _poolers_ms(topology: Topology, plan: MovePlan, distance: Distance) -> float:
    """Estimate what the slowest pooler takes."""
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
            + trips * distance.pooler
        )
    return max(poolers)


def budget_ms(topology: Topology, plan: MovePlan, distance: Distance, tables: int = 0) -> float:
    """Tell what `--max-pause` has to be at least, in ms.

    It begins before the first PAUSE, and some of it has to be left at the decision. `tables` are
    those that move, which count where writes are refused.
    """
    first = "fence" if fences.of(plan).refuses_writes else "pause"
    before = far_ms(distance, cutover.of(plan).before(first))
    return _unserved_ms(topology, plan, distance, tables) + RESERVED_MS + before


def require_time(topology: Topology, plan: MovePlan, distance: Distance, tables: int = 0) -> None:
    """See that `--max-pause` leaves room for what is predicted; raises PauseTooShort."""
    needed = budget_ms(topology, plan, distance, tables)
    if plan.options.max_pause_s * 1000 < needed:
        predicted = _unserved_ms(topology, plan, distance, tables)
        raise PauseTooShort(plan.options.max_pause_s, predicted, needed)


def _unserved_ms(topology: Topology, plan: MovePlan, distance: Distance, tables: int) -> float:
    """Estimate how long nobody can write."""
    refused = refused_ms(topology, plan, distance, tables)
    return pause_ms(topology, plan, distance) if refused is None else refused
