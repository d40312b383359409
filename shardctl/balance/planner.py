"""The planner: capacities, weights and sizes in, an ordered list of moves out; pure.

What a node must not have goes first, then shards that are a large part of a share; then nodes
above their share give to nodes below it, as long as that brings both nearer. Every step depends on
the fleet at that moment alone, so a plan that has been carried out leaves nothing to plan.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from shardctl.balance import grouping, shares, steps
from shardctl.balance.fleet import Balance, NodeChange, Stuck
from shardctl.balance.working import Working

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from shardctl.balance.fleet import GroupMove, NodeRoom, ShardLoad
    from shardctl.topology.model import NodeName, ShardId

_AIM = 0.5
"""A plan that begins because a node is outside the threshold ends within this part of it."""
_SMALL = 0.1
"""Up to this part of a share, shards that must leave a node go in runs, not one by one."""
_LEAST = 0.01
"""What is less than this part of a share is not worth a step."""


def plan(
    nodes: Sequence[NodeRoom],
    shards: Iterable[ShardLoad],
    *,
    threshold: float = 0.1,
    most: int | None = None,
    emptying: bool = False,
) -> Balance:
    """Plan the moves that make a fleet even; at least one node has a weight.

    Nothing is planned as long as every node is within `threshold` of its share. `most` limits the
    number of moves; with `emptying`, shards leave nodes of weight 0 only, and all else stays.
    """
    every = {one.shard: one for one in shards}
    at = {shard: one.node for shard, one in every.items()}
    while True:
        work = _working(nodes, every, at, apart=not emptying)
        if any(_must_leave(work)) or any(_homes(work)) or _uneven(work, threshold):
            _even_out(work, _AIM * threshold, emptying=emptying)
        if work.owner == at:
            break
        at = work.owner
    moves = grouping.moves(work, every)
    kept = moves if most is None else moves[:most]
    changes = _changes(work, every, kept)
    return Balance(tuple(kept), tuple(changes), tuple(_stuck(work)), len(moves) - len(kept))


def _working(
    nodes: Sequence[NodeRoom],
    shards: Mapping[ShardId, ShardLoad],
    at: Mapping[ShardId, NodeName],
    *,
    apart: bool,
) -> Working:
    """Give the fleet as it is when a plan up to here has been carried out."""
    received = dict.fromkeys((node.name for node in nodes), 0)
    for shard, node in at.items():
        if shards[shard].node != node:
            received[node] += shards[shard].bytes
    left = [
        replace(node, room=None if node.room is None else node.room - received[node.name])
        for node in nodes
    ]
    counted = shares.loads(shards.values())
    work = Working(left, {s: replace(one, node=at[s]) for s, one in shards.items()}, counted)
    work.take(shares.of(left, work.shards, counted, work.owner, apart=apart))
    return work


def _even_out(work: Working, aim: float, *, emptying: bool) -> None:
    """Move shards until no step brings the fleet nearer to its shares."""
    for shard, node in _homes(work):
        work.move([shard], node)
    _evict(work)
    if not emptying:
        _spread_big(work, aim)
        while _step(work, aim):
            pass


def _uneven(work: Working, threshold: float) -> bool:
    return any(abs(work.deviation(node)) > threshold for node in work.takers())


def _homes(work: Working) -> list[tuple[ShardId, NodeName]]:
    """List the shards that get a node alone and are still elsewhere."""
    return [(shard, node) for node, shard in work.alone.items() if work.owner[shard] != node]


def _must_leave(work: Working) -> list[ShardId]:
    """List what is on a node that should be empty, or have another shard alone."""
    free = {*work.takers()}
    return [
        shard for node in work.nodes if node not in free for shard in work.movable(node)
    ]  # fmt: skip


def _evict(work: Working) -> None:
    """Give away what has to leave its node: large shards one by one, the others in runs."""
    takers = work.takers()
    leaving = _must_leave(work)
    limit = _SMALL * max((work.share[node] for node in takers), default=0.0)
    large = [shard for shard in leaving if work.counted[shard] > limit]
    for shard in sorted(large, key=lambda one: (-work.counted[one], one)):
        fitting = [n for n in takers if work.shards[shard].bytes <= work.room[n]]
        if fitting:
            load = work.counted[shard]
            work.move(
                [shard], min(fitting, key=lambda n: ((work.load[n] + load) / work.share[n], n))
            )
    rest = [shard for shard in leaving if work.counted[shard] <= limit]
    while rest:
        fitting = [n for n in takers if work.shards[rest[0]].bytes <= work.room[n]]
        if not fitting:
            rest.pop(0)
            continue
        target = min(fitting, key=lambda n: (work.deviation(n), n))
        run = _fill(work, rest, target)
        work.move(run, target)
        del rest[: len(run)]


def _fill(work: Working, rest: Sequence[ShardId], target: NodeName) -> list[ShardId]:
    """Give the shards from the front that fill a node to its share; at least one."""
    run = [rest[0]]
    load = work.load[target] + work.counted[rest[0]]
    room = work.room[target] - work.shards[rest[0]].bytes
    for shard in rest[1:]:
        load += work.counted[shard]
        room -= work.shards[shard].bytes
        if load > work.share[target] or room < 0:
            break
        run.append(shard)
    return run


def _spread_big(work: Working, aim: float) -> None:
    """Part big shards that together are more than a node's share."""
    moved = True
    while moved:
        moved = False
        for source in sorted(work.takers(), key=lambda n: (-work.deviation(n), n)):
            excess = work.big_load(source) - work.share[source] * (1 + aim)
            if excess <= 0:
                continue
            big = [shard for shard in work.movable(source) if work.big(shard, source)]
            # The smallest whose departure is enough; else the smallest of all.
            enough = [shard for shard in big if work.counted[shard] >= excess] or big
            for shard in sorted(
                enough, key=lambda one: (work.counted[one], work.shards[one].bytes, -one)
            ):
                target = _taker_of_big(work, shard, aim)
                if target is not None:
                    work.move([shard], target)
                    moved = True
                    break


def _taker_of_big(work: Working, shard: ShardId, aim: float) -> NodeName | None:
    load, size = work.counted[shard], work.shards[shard].bytes
    fitting = [
        node
        for node in work.takers()
        if node != work.owner[shard]
        if size <= work.room[node]
        if work.big_load(node) + load <= work.share[node] * (1 + aim)
    ]
    return min(fitting, key=lambda n: ((work.load[n] + load) / work.share[n], n), default=None)


def _step(work: Working, aim: float) -> bool:
    """Bring one pair of nodes nearer to their shares; return whether any was."""
    pairs = list(_pairs(work, aim))
    for source, target in pairs:
        if gift := steps.gift(work, source, target, aim):
            work.move(gift, target)
            return True
    for source, target in pairs:
        if (both := steps.swap(work, source, target, aim)) is not None:
            given, back = both
            work.move([given], target)
            work.move([back], source)
            return True
    return False


def _pairs(work: Working, aim: float) -> Iterable[tuple[NodeName, NodeName]]:
    """List who could give to whom: the fullest first, to the emptiest first."""
    takers = sorted(work.takers(), key=lambda n: (-work.deviation(n), n))
    for source in takers:
        for target in sorted(takers, key=lambda n: (work.deviation(n), n)):
            wanted = min(work.over(source), -work.over(target))
            needed = max(work.deviation(source), -work.deviation(target)) > aim
            least = _LEAST * min(work.share[source], work.share[target])
            if needed and wanted > least:
                yield source, target


def _stuck(work: Working) -> Iterable[Stuck]:
    """List what should leave its node and cannot, largest first."""
    free = {node for node, one in work.nodes.items() if one.weight > 0}
    rooms = [work.room[node] for node in free]
    most = max(rooms, default=0.0)
    homeless = [s for s in work.fixed if s not in work.alone.values()]
    for shard in sorted({*homeless, *_must_leave(work)}, key=lambda s: (-work.counted[s], s)):
        node, size = work.owner[shard], work.shards[shard].bytes
        why = "no node has room for it" if size > most else "no node is free for it"
        yield Stuck(shard, node, size, why)


def _changes(
    work: Working, shards: Mapping[ShardId, ShardLoad], kept: Sequence[GroupMove]
) -> Iterable[NodeChange]:
    """Give every node before and after the moves that are kept."""
    after = {shard: one.node for shard, one in shards.items()}
    before = dict(after)
    for move in kept:
        after |= dict.fromkeys(move.shards, move.target)
    for node in work.nodes:
        first, last = ([s for s, n in at.items() if n == node] for at in (before, after))
        yield NodeChange(
            node,
            work.share[node],
            work.alone.get(node),
            loads=(_load(work, first), _load(work, last)),
            bytes=(work.bytes_of(first), work.bytes_of(last)),
            shards=(len(first), len(last)),
        )


def _load(work: Working, shards: Sequence[ShardId]) -> float:
    return math.fsum(work.shards[shard].load for shard in shards)
