"""How fast the planner is, and how even and how cheap its plans are, on fleets of no servers."""

from __future__ import annotations

import random
import statistics
import time
from typing import TYPE_CHECKING, Any

from shardctl.balance import planner
from shardctl.balance.fleet import NodeRoom, ShardLoad
from shardctl.topology.model import NodeName, ShardId
from tests.bench.measure import Row, milliseconds, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.bench.measure import Scale

PLANNED_S, FULLEST, COST = 2.0, 1.05, 1.2
SHARDS, NODES = 8192, 32
_LARGEST = 10**12


def zipf(*, shards: int, nodes: int, seed: int) -> tuple[list[NodeRoom], list[ShardLoad]]:
    """Give a fleet whose shard of rank n has 1/n of the largest one's bytes, at random places."""
    drawn = random.Random(seed)  # noqa: S311  # a seed repeats the fleet
    sizes = [_LARGEST // rank for rank in range(1, shards + 1)]
    drawn.shuffle(sizes)
    names = [NodeName(f"n{at:02}") for at in range(nodes)]
    return [NodeRoom(name) for name in names], [
        ShardLoad(ShardId(at), drawn.choice(names), float(size), size)
        for at, size in enumerate(sizes)
    ]


def planned(nodes: Sequence[NodeRoom], shards: Sequence[ShardLoad]) -> dict[str, Any]:
    """Plan a fleet, and give what the bench shows.

    `cost` is the bytes moved, of the sum of what nodes have above what they should have: their
    large shard alone, or the mean of the nodes without one. No plan that ends at these moves less.
    """
    began = time.perf_counter()
    found = planner.plan(nodes, shards)
    took = time.perf_counter() - began
    others = [one for one in found.nodes if one.alone is None]
    mean = statistics.mean(one.loads[1] for one in others)
    least = sum(max(0.0, one.loads[0] - one.share) for one in found.nodes)
    return {
        "took": took,
        "moves": len(found.moves),
        "large": len(found.nodes) - len(others),
        "alone": all(one.shards[1] == 1 for one in found.nodes if one.alone is not None),
        "fullest": max(one.loads[1] for one in others) / mean,
        "emptiest": min(one.loads[1] for one in others) / mean,
        "cost": found.bytes / least,
    }


def plan(scale: Scale) -> list[Row]:
    """Plan 8,192 shards with Zipf-distributed sizes on 32 nodes, for some seeds."""
    count, nodes = scale.of(SHARDS, 512), scale.of(NODES, 8)
    found = []
    for seed in range(scale.of(10, 2)):
        say(f"  fleet {seed + 1}")
        found.append(planned(*zipf(shards=count, nodes=nodes, seed=seed)))
    took = [one["took"] for one in found]
    name = f"plan {count:,} shards on {nodes} nodes"
    return [
        _worst(name, milliseconds(max(took)), max(took), PLANNED_S, "2 s"),
        _worst("  fullest node, of the mean", *_factor(found, "fullest"), FULLEST),
        _worst("  bytes moved, of the least", *_factor(found, "cost"), COST),
        Row(
            "  shards larger than the mean node that have one alone",
            "all" if all(one["alone"] for one in found) else "NOT ALL",
            f"{min(one['large'] for one in found)} a fleet",
            target="all",
            met=all(one["alone"] for one in found),
        ),
        Row("  moves", f"{statistics.median(one['moves'] for one in found):.0f}", "in the median"),
    ]


def _factor(found: Sequence[dict[str, Any]], what: str) -> tuple[str, float]:
    worst = max(one[what] for one in found)
    return f"{worst:.3f}", worst


def _worst(name: str, shown: str, value: float, most: float, target: str = "") -> Row:
    return Row(
        name, shown, "the worst", target=f"<= {target or format(most, 'g')}", met=value <= most
    )
