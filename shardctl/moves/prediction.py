"""Predicts how long a move takes, and clients wait in its cutover, from measured parts.

`moves show --timeline` has what is predicted beside what each sub-step took.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from shardctl.moves import clone_cutover, stream_cutover
from shardctl.moves import plan as planning
from shardctl.moves.paused_poolers import CONSOLES
from shardctl.moves.plan import MovePlan
from shardctl.moves.sub_step import Cutover, RoundTrips, round_trips_ms
from shardctl.pgbouncer import apply
from shardctl.state import journal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardctl.state.journal import Move
    from shardctl.topology.model import Topology


RENAMED_MS: Mapping[str, float] = MappingProxyType({planning.CLONE: 0.05, planning.STREAM: 0.25})
"""For each moved shard, in the fence: its rename, and what sessions read again after it."""
MOVED_MS: Mapping[str, float] = MappingProxyType({planning.CLONE: 0.12, planning.STREAM: 0.7})
"""For each moved shard, in the claim: its renames or its rights, its new id block, its locks."""
REREAD_MS = 2.0
"""In a streamed move's fence: reading the catalogs again behind its renames.

Of 2 shards on an idle machine, the fence took 8 ms, and its parts in the rehearsal 6.
"""
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


def cutover_of(plan: MovePlan) -> Cutover:
    """Give the sub-steps of a move's cutover."""
    return stream_cutover.CUTOVER if plan.streams else clone_cutover.CUTOVER


def _poolers_ms(topology: Topology, plan: MovePlan, round_trips: RoundTrips) -> tuple[float, float]:
    """Estimate the time of the slowest pooler: for its pauses, and for its route."""
    poolers = [(0.0, 0.0)]
    for one in topology.poolers.values():
        paused, size = len(planning.paused(topology, plan, one)), planning.offered(topology, one)
        pausing = routing = PAUSED_MS * paused / 2
        pausing += max(0, math.ceil(paused / CONSOLES) - 1) * round_trips.pooler
        routing += OFFERED_MS * size + apply.reload_ms(size)
        if one.ssh is not None:
            routing += SSH_MS + _SSH_TRIPS * round_trips.pooler
        poolers.append((pausing, routing))
    return max(poolers, key=sum)


_FIXED: Mapping[str, Mapping[str, float]] = MappingProxyType({
    planning.CLONE: {
        "pause": 4, "fence": 3, "drain": 2, "mark": 2, "snapshot": 4, "decide": 2,
        "promote": 26, "claim": 22, "route": 5,
    },
    planning.STREAM: {
        "pause": 4, "fence": 8, "arrive": 2, "look": 2, "decide": 3, "claim": 3.5, "route": 5,
    },
})  # fmt: skip
"""A cutover's time without shards, aliases and load, by sub-step, in ms.

Under the loads of `make bench` it takes twice that. A stream's target is a primary all the time.
"""
_UNMEASURED = ("pause", "look", "decide", "route")
"""What a rehearsal does not measure, but for the sequences that are read for the decision."""


def parts_ms(
    topology: Topology,
    plan: MovePlan,
    round_trips: RoundTrips,
    tables: int,
    measured: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """Estimate how long clients will wait in each sub-step for which they do, in ms.

    `topology` is the one before the move, `tables` the number of moved tables. A busy machine takes
    several times as long. PAUSE also waits for the longest running transaction, which is unknown
    before.

    With the parts that the rehearsal of a streamed move has `measured`: these were as many times
    slower than alone as clients and all other work made them; the rest is taken to be slower by the
    square root of that, for these clients wait meanwhile.
    """
    waiting = cutover_of(plan).between("pause", "route")
    found, slower = dict.fromkeys((row.name for row in waiting), 0.0), 1.0
    found |= _alone_ms(topology, plan, tables)
    if measured is not None:
        # Measured beside clients, whom the pause stops, and rolled back: a commit takes the
        # difference.
        fence, claim = measured["lock_and_mark"] + measured["structure"], measured["claim"]
        slower = math.sqrt((fence + claim) / (found["fence"] + found["claim"]))
        found = dict.fromkeys(found, 0.0) | {name: slower * found[name] for name in _UNMEASURED}
        # The look at the structure is in the fence's message; nothing was renamed before it.
        renamed = REREAD_MS + RENAMED_MS[plan.method] * len(plan.schemas)
        found["fence"] = fence + slower * renamed
        # The target waits for the mark while the source looks at the structure.
        found["arrive"] = max(0.0, measured["arrive"] - measured["structure"])
        found["decide"] += measured["sequences"]
        found["claim"] = claim
    pausing, routing = _poolers_ms(topology, plan, round_trips)
    found["pause"] += slower * pausing
    found["route"] += slower * routing
    for row in waiting:
        found[row.name] += round_trips_ms(round_trips, [row])
    return found


def _alone_ms(topology: Topology, plan: MovePlan, tables: int) -> dict[str, float]:
    """Estimate the same without the poolers' part and without round trips."""
    found = dict(_FIXED[plan.method])
    found["fence"] += RENAMED_MS[plan.method] * len(plan.schemas)
    found["claim"] += MOVED_MS[plan.method] * len(plan.schemas)
    if plan.streams:
        found["fence"] += LOCKED_TABLE_MS * tables
    else:
        found["claim"] += STAYING_MS * len(planning.leaving(topology, plan))
        found["drain"] += CLONED_TABLE_MS * tables / 2
        found["claim"] += CLONED_TABLE_MS * tables / 2
    return found


BEFORE, WAITING, AFTER = "before", "waiting", "after"
"""When a sub-step runs: before clients wait, while they do, and afterwards."""


@dataclass(frozen=True, slots=True)
class Times:
    """One sub-step, as in docs/reference/json.md; None is not measured, or not predicted."""

    name: str
    when: str
    elapsed_ms: float | None
    predicted_ms: float | None


def sub_step_times(topology: Topology, move: Move) -> list[Times]:
    """List the sub-steps of a move's last cutover, in their order.

    Those of one that was undone end where it stopped. Of a move that has not begun its cutover they
    are all that there will be, with the prediction.
    """
    plan, report = MovePlan.of_journal(move), move.report or {}
    attempt = report if "timeline" in report else report.get(journal.UNDONE, {})
    spans = attempt.get("timeline") or [(row.name, None) for row in cutover_of(plan).rows]
    # What was predicted then, else what is predicted now, where the topology still fits.
    expected = attempt.get("predicted_timeline", ())
    if "predicted_timeline" not in attempt and plan.source in topology.nodes:
        measured = report.get(journal.REHEARSAL, {}).get("parts_ms")
        now = parts_ms(planning.before(topology, plan), plan, RoundTrips(), 0, measured)
        expected = [(name, round(ms, 1)) for name, ms in now.items()]
    predicted, found, when = dict(expected), [], BEFORE
    for name, took in spans:
        when = WAITING if name == "pause" else when
        found.append(Times(name, when, took, predicted.get(name)))
        when = AFTER if name in ("route", "undo: resume") else when
    return found
