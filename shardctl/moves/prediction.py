"""Predicts how long a move takes, and clients wait in its cutover, from measured parts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from shardctl.moves import cutover
from shardctl.moves import plan as planning
from shardctl.moves.paused_poolers import CONSOLES
from shardctl.moves.sub_step import round_trips_ms
from shardctl.pgbouncer import cost

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardctl.moves.plan import MovePlan
    from shardctl.moves.round_trips import RoundTrips
    from shardctl.topology.model import Topology

FIXED_MS = 70.0
"""A cutover's time without shards, aliases and load (`moves show` prints each part):
promote 26, claim and open 22, route 5, pause and snapshot 4 each, fence 3, drain, mark and decide
2 each. Under the loads of `make bench` it takes twice that."""
STREAMED_MS = 25.0
"""The same for a streamed move, whose target is a primary all the time."""
REST_MS = 4.0
"""Of that, what a rehearsal does not measure: pause, mark, look, the decision's commit, route."""
REST_COMMITS = 12.0
"""The same in commits, which take longer where it takes longer, too."""
RENAMED_MS = 0.05
"""For each moved shard: its rename."""
MOVED_MS = 0.17
"""For each moved shard: its renames, its new id block, its locks."""
STAYING_MS = 0.02
"""For each shard that stays: its rename on the target."""
LOCKED_TABLE_MS = 0.1
"""For each moved table of a streamed move: its lock, and the looks at its structure behind that.

Fence and drain of 3,000 tables took 73, 225 and 534 ms, under different loads.
"""
CLONED_TABLE_MS = 0.02
"""For each moved table of a clone: those who write to it are looked for, and its rename is redone.

Measured as COMPARED_TABLE_S.
"""
PAUSED_MS = 0.07
"""For each alias of the slowest pooler that is paused and resumed."""
OFFERED_MS = 0.02
"""For each alias that it offers: SHOW DATABASES and the comparison, without RELOAD."""
SSH_MS = 5.0
"""For a pooler over ssh, besides the round trips: replacing its file."""
BEGUN_S = 4.0
"""A move without rows: its checks, a small copy, following, the cutover's guards, the end."""
COMPARED_TABLE_S = 0.005
"""For each moved table: comparing it once, and closing it at the end.

Measured by moves of one shard with 2, 200, 1,000 and 2,000 tables of 10 rows, a primary key and an
index: streamed, and cloned. Both nodes, the pooler and shardctl shared two cores with other work.
At a load of 3.5, 1,000 tables took 11 s for structure, copy and indexes, 3.9 s for the rehearsal,
3.6 s for the comparison, 2 s for closing, and a clone of 2,000 took 8 s; at a load of 10, 2,000
took 55, 19, 13 and 13 s, and a clone of 4,000 took 130 s.
"""
COMPARE_RATE = 120 * 1024 * 1024
"""The rate at which rows are compared, on both nodes at once, in bytes of tables and indexes.

Assumed; 40 MB/s were measured at a load of 10 on two cores.
"""
BESIDE = 5
"""How many times as long a move may take beside other work: 2.4 to 4.8 times at a load of 10."""

_SSH_TRIPS = 3


def move_s(plan: MovePlan, copy_s: float, size: int, tables: int) -> float:
    """Estimate how long the move takes in all, in s, where it is alone on its machines.

    `copy_s` is of its copy; `size` bytes in `tables` tables are compared once, or twice in a
    stream, which compares them in its rehearsal, too.
    """
    times = 2 if plan.streams else 1
    return BEGUN_S + copy_s + times * (tables * COMPARED_TABLE_S + size / COMPARE_RATE)


def pause_ms(topology: Topology, plan: MovePlan, round_trips: RoundTrips, tables: int) -> float:
    """Estimate how long clients will wait, in ms; `topology` is the one before the move.

    `tables` is the number of moved tables. A busy machine takes several times as long. PAUSE also
    waits for the longest running transaction, which is unknown before.
    """
    moved = MOVED_MS * len(plan.schemas)
    poolers_ms = _poolers_ms(topology, plan, round_trips)
    fixed = _fixed_ms(topology, plan, tables)
    waiting = cutover.of(plan).between("pause", "route")
    return fixed + moved + poolers_ms + round_trips_ms(round_trips, waiting)


def measured_ms(
    topology: Topology, plan: MovePlan, round_trips: RoundTrips, parts: Mapping[str, float]
) -> float:
    """Estimate the same for a streamed move, from parts that its rehearsal has measured, in ms."""
    # The target waits for the mark while the source looks at the structure.
    nodes = sum(parts.values()) - min(parts["arrive"], parts["structure"]) - parts["commit"]
    rest = REST_MS + REST_COMMITS * parts["commit"]
    waiting = cutover.of(plan).between("pause", "route")
    far = round_trips_ms(round_trips, waiting)
    renames = RENAMED_MS * len(plan.schemas)
    return rest + renames + nodes + _poolers_ms(topology, plan, round_trips) + far


def _fixed_ms(topology: Topology, plan: MovePlan, tables: int) -> float:
    """Estimate what nodes take but for the moved shards."""
    if plan.streams:  # nothing that stays is on the target
        return STREAMED_MS + LOCKED_TABLE_MS * tables
    staying = STAYING_MS * len(planning.leaving(topology, plan))
    return FIXED_MS + staying + CLONED_TABLE_MS * tables


def _poolers_ms(topology: Topology, plan: MovePlan, round_trips: RoundTrips) -> float:
    """Estimate the time of the slowest pooler."""
    return sum(poolers_parts_ms(topology, plan, round_trips))


def poolers_parts_ms(
    topology: Topology, plan: MovePlan, round_trips: RoundTrips
) -> tuple[float, float]:
    """Estimate the time of the slowest pooler: for its pauses, and for its route."""
    poolers = [(0.0, 0.0)]
    for one in topology.poolers.values():
        paused, size = len(planning.paused(topology, plan, one)), planning.offered(topology, one)
        over_ssh = one.ssh is not None
        poolers.append(
            (
                PAUSED_MS * paused / 2
                + max(0, math.ceil(paused / CONSOLES) - 1) * round_trips.pooler,
                PAUSED_MS * paused / 2
                + OFFERED_MS * size
                + cost.reload_ms(size)
                + (SSH_MS + _SSH_TRIPS * round_trips.pooler if over_ssh else 0.0),
            )
        )
    return max(poolers, key=sum)
