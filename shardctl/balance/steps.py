"""One step from a node above its share to a node below it: which shards to give."""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardctl.balance.working import Working
    from shardctl.topology.model import NodeName, ShardId

_CLOSE = 0.4
"""A run of shards fits if it misses the wanted load by at most this part of `aim`."""
_EQUAL = 1.05
"""Costs up to this factor count as equal."""
_ENOUGH = 0.25
"""A set of shards has to be this part of what is wanted, at least."""
_WORTH = 0.05
"""What a step has to gain, as a part of the load that it moves."""
_EXACT = 1 + 1e-9
"""Sums of equal numbers differ in their last digits."""


def gift(work: Working, source: NodeName, target: NodeName, aim: float) -> list[ShardId]:
    """Choose shards whose move brings both nodes nearer to their shares; empty where none does.

    Those that copy the fewest bytes for their load; among equals a run of neighbours, from the
    upper end.
    """
    wanted = min(work.over(source), -work.over(target)) * _EXACT
    limit = work.share[target] * (1 + aim) - work.big_load(target)
    fit = [
        shard
        for shard in work.movable(source)
        if not work.big(shard, target) or work.counted[shard] <= limit
    ]
    run = _run(work, fit, wanted, work.room[target], _CLOSE * aim * work.share[target])
    chosen = _set(work, fit, wanted, work.room[target])
    if sum(work.big(shard, target) for shard in run) > 1:
        run = []
    if run and (not chosen or _cost(work, run) <= _cost(work, chosen) * _EQUAL):
        return run
    if chosen and work.load_of(chosen) >= _ENOUGH * wanted:
        return chosen
    return _single(work, fit, source, target)


def swap(
    work: Working, source: NodeName, target: NodeName, aim: float
) -> tuple[ShardId, ShardId] | None:
    """Choose a shard of each of two nodes whose exchange brings both nearer to their shares."""
    over, under = work.over(source), -work.over(target)
    back = sorted(work.movable(target), key=lambda shard: (work.counted[shard], shard))
    back = [s for s in back if work.shards[s].bytes <= work.room[source]]
    counted = [work.counted[shard] for shard in back]
    best, gained = None, 0.0
    for shard in work.movable(source):
        if work.shards[shard].bytes > work.room[target]:
            continue
        load = work.counted[shard]
        at = bisect_left(counted, load - min(over, under))
        for other in back[max(0, at - 1) : at + 1]:
            given = load - work.counted[other]
            gain = over + under - abs(over - given) - abs(under - given)
            worth = gain - _WORTH * (load + work.counted[other])
            if worth > gained and not _too_big(work, shard, other, target, aim):
                best, gained = (shard, other), worth
    return best


def _too_big(work: Working, shard: ShardId, other: ShardId, target: NodeName, aim: float) -> bool:
    """Return whether an exchange gives the target more big shards than fit into its share."""
    if not work.big(shard, target):
        return False
    left = work.big_load(target) - (work.counted[other] if work.big(other, target) else 0.0)
    return left + work.counted[shard] > work.share[target] * (1 + aim)


def _run(
    work: Working, fit: Sequence[ShardId], wanted: float, room: float, miss: float
) -> list[ShardId]:
    """Choose neighbours that together have what is wanted; empty where no run does."""
    found = [
        (first, last, copied)
        for first, last, load, copied in _windows(work, fit, wanted)
        if load >= wanted - miss and copied <= room
    ]
    if not found:
        return []
    least = min(copied for _, _, copied in found)
    first, last, _ = next(one for one in found if one[2] <= least * _EQUAL)
    return list(fit[first : last + 1])


def _windows(
    work: Working, fit: Sequence[ShardId], wanted: float
) -> Iterator[tuple[int, int, float, int]]:
    """Give, from the upper end, the longest run below `wanted` that ends at each shard."""
    load, copied, first = 0.0, 0, len(fit)
    for last in reversed(range(len(fit))):
        while first > 0 and load + work.counted[fit[first - 1]] <= wanted:
            first -= 1
            load += work.counted[fit[first]]
            copied += work.shards[fit[first]].bytes
        if first <= last:
            yield first, last, load, copied
            load -= work.counted[fit[last]]
            copied -= work.shards[fit[last]].bytes
        else:
            first, load, copied = last, 0.0, 0


def _set(work: Working, fit: Sequence[ShardId], wanted: float, room: float) -> list[ShardId]:
    """Choose shards that together have at most what is wanted: the cheapest, then the largest."""
    chosen: list[ShardId] = []
    for shard in sorted(fit, key=lambda one: (_dear(work, one), -work.counted[one], -one)):
        load, size = work.counted[shard], work.shards[shard].bytes
        if load <= wanted and size <= room:
            chosen.append(shard)
            wanted -= load
            room -= size
    return chosen


def _dear(work: Working, shard: ShardId) -> int:
    """Rank a shard by the bytes that its load costs, roughly."""
    return round(4 * math.log2((work.shards[shard].bytes + 1) / work.counted[shard]))


def _cost(work: Working, chosen: Sequence[ShardId]) -> float:
    return work.bytes_of(chosen) / work.load_of(chosen)


def _single(
    work: Working, fit: Sequence[ShardId], source: NodeName, target: NodeName
) -> list[ShardId]:
    """Choose one shard that is larger than what is wanted, and worth it all the same."""
    over, under = work.over(source), -work.over(target)

    def worth(shard: ShardId) -> float:
        load = work.counted[shard]
        return over + under - abs(over - load) - abs(under - load) - _WORTH * load

    fit = [shard for shard in fit if work.shards[shard].bytes <= work.room[target]]
    best = max(fit, key=lambda shard: (worth(shard), shard), default=None)
    return [best] if best is not None and worth(best) > 0 else []
