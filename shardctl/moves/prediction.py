"""How long clients will wait in a cutover, by what its parts were measured to take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.moves import plan as planning
from shardctl.moves import preflight_poolers as pooling
from shardctl.moves.preflight_refusals import PauseTooShort
from shardctl.pgbouncer import cost

if TYPE_CHECKING:
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
PAUSED_MS = 0.07
"""For each alias of the slowest pooler that is paused and resumed."""
OFFERED_MS = 0.02
"""For each alias that it offers: SHOW DATABASES, and comparing that; RELOAD comes on top."""
SSH_MS = 11.0
"""For a pooler that is reached by ssh, beside three round trips: its file takes its place there."""
RESERVED_MS = 400.0
"""Of the budget: 300 have to be left at the decision, and it begins a little before the pause."""


def pause_ms(topology: Topology, plan: MovePlan) -> float:
    """Estimate how long clients will wait, in ms; `topology` is that of before the move.

    On a machine that has nothing else to do; a busy one takes several times as long. A pause also
    waits for the longest transaction that runs then, of which nothing is known before.
    """
    shards = MOVED_MS * len(plan.schemas) + STAYING_MS * len(planning.leaving(topology, plan))
    poolers = [
        PAUSED_MS * len(pooling.paused(topology, plan, one))
        + OFFERED_MS * pooling.size(topology, one)
        + cost.reload_ms(pooling.size(topology, one))
        + (SSH_MS if one.ssh is not None else 0.0)
        for one in topology.poolers.values()
    ]
    return FIXED_MS + shards + max(poolers, default=0.0)


def require_time(topology: Topology, plan: MovePlan) -> None:
    """See that `--max-pause` leaves room for what is predicted; raises PauseTooShort.

    It begins before the first PAUSE, and some of it has to be left at the decision.
    """
    predicted = pause_ms(topology, plan)
    needed = predicted + RESERVED_MS
    if plan.options.max_pause_s * 1000 < needed:
        raise PauseTooShort(plan.options.max_pause_s, predicted, needed)
