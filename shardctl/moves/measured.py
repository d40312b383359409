"""Predicts how long clients will wait in the cutover of a streamed move, from measured parts."""

from __future__ import annotations

import statistics
import time
from functools import partial
from typing import TYPE_CHECKING

from psycopg import sql

from shardctl.access import stream_fence
from shardctl.moves import marks, stream_claim
from shardctl.moves.context import Use
from shardctl.moves.round_trips import RoundTrips, of_machine, shortest_ms
from shardctl.postgres import queries

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardctl.moves.context import MoveContext
    from shardctl.postgres.logical.moment import Moment

QUERIES = queries.load("shardctl.moves", "rehearsal.sql")

_SAMPLES, _COMMITS = 3, 9
_COMMIT = "measured"


def parts(context: MoveContext, moment: Moment, round_trips: RoundTrips) -> dict[str, float]:
    """Measure what takes longer with more tables and rows, in ms, while clients write.

    A busy machine needs longer for each of them, and for what is not measured: the time of a commit
    stands for that. `moment` has the locks and the mark, as they were. Round trips are left out.
    """
    plan = context.plan
    with context.on(plan.source):
        source = context.session(plan.source)
        _, known = stream_fence.known(source, plan.schemas)
        look: Callable[[], object] = partial(stream_fence.untouched, source, known)
        if not known:  # the whole digest is read then
            look = partial(stream_fence.left, source, plan.id, plan.schemas)
        commit_ms = _median_ms(partial(marks.put, source, plan.id, _COMMIT), _COMMITS)
        look_ms = _median_ms(look)
        schemas = sql.SQL(", ").join(map(sql.Literal, plan.schemas))
        reading = QUERIES["sequences"].format(schemas=schemas)
        sequences_ms = _median_ms(partial(source.execute, reading))
    with context.on(plan.target):
        target = context.session(plan.target, Use.lock)
        stream_claim.make(context, target)
        claims = [stream_claim.measured_ms(context, target) for _ in range(_SAMPLES)]
    of_source = {
        "commit": commit_ms,
        "lock_and_mark": moment.held_ms - moment.waited_ms,
        "structure": look_ms,
        "sequences": sequences_ms,
    }
    of_target = {"arrive": moment.arrived_ms, "claim": statistics.median(claims)}
    return {name: max(0.0, ms - round_trips.source) for name, ms in of_source.items()} | {
        name: max(0.0, ms - round_trips.target) for name, ms in of_target.items()
    }


def round_trips(context: MoveContext) -> RoundTrips:
    """Measure the round trips to both nodes and to the slowest pooler."""
    plan = context.plan
    poolers = [of_machine(one) for one in context.topology.poolers.values()]
    nodes = {}
    for node in (plan.source, plan.target):
        with context.on(node):
            nodes[node] = shortest_ms(partial(context.session(node).execute, "SELECT 1"))
    return RoundTrips.of(
        source=nodes[plan.source], target=nodes[plan.target], pooler=max(poolers, default=0.0)
    )


def _median_ms(ask: Callable[[], object], samples: int = _SAMPLES) -> float:
    took = []
    for _ in range(samples):
        began = time.monotonic()
        ask()
        took.append((time.monotonic() - began) * 1000)
    return statistics.median(took)
