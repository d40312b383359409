"""How quick `rebalance` plans for a large fleet, and how near that comes to the best plan."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

from shardctl.fleet.balance import plan
from tests.bench.measure import Row, rounds, seconds
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
    found = []
    for name, serving in (("on 32 nodes", 32), ("on 16 of 32 nodes", 16), ("on 1 of 32 nodes", 1)):
        before = zipf(serving=serving)

        def once(_: int) -> float:
            began = time.process_time()
            plan(before, threshold=THRESHOLD)  # noqa: B023  # it ends within the round
            return time.process_time() - began

        took = rounds(scale.of(5, 1), once)
        balance = plan(before, threshold=THRESHOLD)
        middle = statistics.median(took)
        found.append(
            Row(
                f"plan 8,192 shards {name}, CPU",
                seconds(middle),
                f"allowed {seconds(ALLOWED_S)}",
                middle / ALLOWED_S,
                (min(took) / ALLOWED_S, max(took) / ALLOWED_S),
                target="<= 1",
                met=middle <= ALLOWED_S,
                note=f"{len(balance.steps)} moves",
            )
        )
        least = least_moved(before, THRESHOLD)
        ratio = moved(before, balance) / least
        bytes_moved = f"{moved(before, balance) / sum(before.sizes.values()):.1%} of all bytes"
        found.append(
            Row(
                "  bytes moved",
                bytes_moved,
                f"least {least / sum(before.sizes.values()):.1%}",
                ratio,
                target="<= 1.2",
                met=ratio <= 1.2,
            )
        )
    return found
