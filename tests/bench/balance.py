"""How quick `rebalance` plans for a large fleet, and how near that comes to the best plan."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from shardctl.fleet.balance import plan
from tests.bench.measure import Row, compare, rounds, seconds
from tests.fixtures.fleets.balance import least_moved, moved, zipf

if TYPE_CHECKING:
    from tests.bench.measure import Scale

ALLOWED_S = 2.0
THRESHOLD = 0.05


def planner(scale: Scale) -> list[Row]:
    """Time the planner on 8,192 shards, of which the n-th has a n-th of the largest's size.

    They are on 32 nodes, 256 each in an order of no sense; on 16 of 32 nodes; or all on one. What
    is timed has the look at the plan that it made, which has to find nothing better, in it. Bytes
    are set against those that every plan has to move: less than the best plan needs.
    """
    found: list[Row] = []
    for name, serving in (("on 32 nodes", 32), ("on 16 of 32 nodes", 16), ("on 1 of 32 nodes", 1)):
        before = zipf(serving=serving)

        def once(_: int) -> float:
            began = time.process_time()
            plan(before, threshold=THRESHOLD)  # noqa: B023  # it ends within the round
            return time.process_time() - began

        took = rounds(scale.of(5, 1), once)
        balance = plan(before, threshold=THRESHOLD)
        every = sum(before.sizes.values())
        found += [
            compare(
                f"plan 8,192 shards {name}, CPU",
                took,
                [ALLOWED_S] * len(took),
                against="allowed",
                shown=seconds,
                target=1,
                note=f"{len(balance.steps)} moves",
            ),
            compare(
                "  bytes moved, of all",
                [moved(before, balance) / every],
                [least_moved(before, THRESHOLD) / every],
                against="least",
                shown="{:.1%}".format,
                target=1.2,
            ),
        ]
    return found
