"""The planner of `rebalance`: which shards go where, so that each node has its share; pure.

As Citus's rebalancer, it takes from nodes above their share and gives to those below, and does
nothing while all are within a threshold. But it settles a pair of nodes at a time, with the largest
shards that fit, so that there are few moves of many shards. Where shards are large, improvement
steps follow: one shard moves, perhaps in exchange for another.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shardctl.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from shardctl.topology.model import NodeName, ShardId

_WORTH = 0.1
"""How much of the imbalance an improvement step takes away at least, for what it moves."""
_SPARE = 0.1
"""The part of the threshold that is left on either side: a node does not end at its very edge."""


@dataclass(frozen=True, slots=True)
class Place:
    """A node: its weight beside other nodes', 0 to empty it, and the bytes that may come to it."""

    weight: float = 1.0
    room: float = math.inf


@dataclass(frozen=True, slots=True)
class Fleet:
    """Owners of shards; `load` is what is balanced, and `sizes` are what is copied, in bytes."""

    owners: Mapping[ShardId, NodeName]
    load: Mapping[ShardId, int]
    sizes: Mapping[ShardId, int]
    nodes: Mapping[NodeName, Place]


@dataclass(frozen=True, slots=True)
class Step:
    """Shards that one move takes from a node to another, ascending."""

    source: NodeName
    target: NodeName
    shards: tuple[ShardId, ...]


@dataclass(frozen=True, slots=True)
class Balance:
    """Moves in their order, and for which shards that should move no node has room.

    `shares` is the load that each node should have. A shard that is larger than the heaviest node's
    share gets a node alone, whose share it is.
    """

    steps: tuple[Step, ...]
    stuck: tuple[ShardId, ...]
    shares: Mapping[NodeName, float]
    before: Mapping[NodeName, int]
    after: Mapping[NodeName, int]


def plan(fleet: Fleet, *, threshold: float, max_moves: int | None = None) -> Balance:
    """Plan moves after which no node is further from its share than the threshold, if possible.

    Room is not given back by shards that leave, because `prune` drops them later. Planning on the
    planned fleet gives nothing. Raises UsageError for weights that leave no node to a shard.

    >>> on_a = dict.fromkeys(range(4), "a")
    >>> one = dict.fromkeys(range(4), 1)
    >>> plan(Fleet(on_a, one, one, {"a": Place(), "b": Place()}), threshold=0.1).steps
    (Step(source='a', target='b', shards=(2, 3)),)
    """
    if not any(place.weight > 0 for place in fleet.nodes.values()):
        raise UsageError("every node has weight 0", hint="leave a node that can take the shards")
    first = now = _Pass(fleet, threshold)
    before = dict(first.loads)
    while True:
        tried, better = _try(now.fleet, threshold)
        if not better:
            break
        now = _Pass(tried.result(), threshold)
    stuck = sorted(s for s in tried.stuck if now.fleet.owners[s] == fleet.owners[s])
    groups: dict[tuple[NodeName, NodeName], list[ShardId]] = defaultdict(list)
    for shard, node in sorted(now.fleet.owners.items()):
        if fleet.owners[shard] != node:
            groups[fleet.owners[shard], node].append(shard)
    steps = [Step(*between, tuple(shards)) for between, shards in groups.items()]
    steps = _in_order(first, steps, len(steps) if max_moves is None else max_moves)
    return Balance(tuple(steps), tuple(stuck), now.shares, before, first.loads)


def _in_order(now: _Pass, left: list[Step], most: int) -> list[Step]:
    """Let the step that improves most come first; end where fewer leave the fleet better.

    So moves that are planned one at a time never go round in a circle. Leaves `now` behind them.
    """
    loads = {step: sum(now.load[shard] for shard in step.shards) for step in left}
    misplaced = set(now.misplaced())
    counts = {step: len(misplaced.intersection(step.shards)) for step in left}

    def gain(step: Step) -> tuple[int, float]:
        source, target, load = step.source, step.target, loads[step]
        off = now.off(source) + now.off(target)
        return counts[step], off - now.off(source, -load) - now.off(target, load)

    ordered: list[Step] = []
    whole = len(left) <= most
    found = best = (0, 0.0)
    length = 0
    while left and len(ordered) < most:
        step = max(left, key=gain)
        found = (found[0] + gain(step)[0], found[1] + gain(step)[1])
        left.remove(step)
        ordered.append(step)
        now.shift(step.source, step.target, loads[step])
        if found > best or whole:
            best, length = found, len(ordered)
    for step in ordered[length:]:
        now.shift(step.target, step.source, loads[step])
    return ordered[:length]


def _try(fleet: Fleet, threshold: float) -> tuple[_Pass, bool]:
    """Try to come nearer to the shares; return whether that succeeded.

    Where shards are small it is enough to settle, and ranges of them stay together.
    """
    for large_first in (False, True):
        tried = _Pass(fleet, threshold)
        better = tried.improve(large_first=large_first)
        if better and tried.distance == (0, 0):
            break
    return tried, better


class _Pass:
    """One attempt to bring shards nearer to where they should be, from the owners of `fleet`."""

    def __init__(self, fleet: Fleet, threshold: float) -> None:
        self.fleet, self.threshold = fleet, threshold
        self.load = {shard: max(1, load) for shard, load in fleet.load.items()}
        self.owners = dict(fleet.owners)
        self.room = {node: place.room for node, place in fleet.nodes.items()}
        self.loads = dict.fromkeys(fleet.nodes, 0)
        self.on: dict[NodeName, list[tuple[int, ShardId]]] = {node: [] for node in fleet.nodes}
        """The shards of each node with their loads, ascending."""
        for shard, node in fleet.owners.items():
            self.loads[node] += self.load[shard]
            self.on[node].append((self.load[shard], shard))
        for shards in self.on.values():
            shards.sort()
        self.stuck: set[ShardId] = set()
        self.alone = self._alone()
        """The node of each shard that gets one alone."""
        taken = {*self.alone.values()}
        self.common = {n: p.weight for n, p in fleet.nodes.items() if p.weight and n not in taken}
        """The nodes that share all other shards, with their weights."""
        rest = sum(load for shard, load in self.load.items() if shard not in self.alone)
        each = max(1, rest) / sum(self.common.values())
        self.shares = dict.fromkeys(fleet.nodes, 0.0)
        self.shares |= {node: each * weight for node, weight in self.common.items()}
        self.shares |= {node: float(self.load[shard]) for shard, node in self.alone.items()}

    def _alone(self) -> dict[ShardId, NodeName]:
        """Choose a node for each shard that is larger than the share of every other node left.

        The heaviest node, and among these the shard's own, then one that is soon emptied.
        """
        places = self.fleet.nodes
        weights = sorted((p.weight for p in places.values() if p.weight > 0), reverse=True)
        order = sorted(self.load, key=lambda shard: (-self.load[shard], shard))
        rest, count = sum(self.load.values()), 0
        while count < min(len(weights) - 1, len(order)):
            load = self.load[order[count]]
            if load * sum(weights[count:]) <= rest * weights[count]:
                break
            rest, count = rest - load, count + 1
        large = order[:count]
        free = {node for node, place in places.items() if place.weight > 0}
        having = {self.owners[shard] for shard in large}
        found = {}
        for shard in large:
            here = self.owners[shard]
            fitting = [node for node in free if self._fits(shard, node)]
            if not fitting:
                self.stuck.add(shard)
            found[shard] = min(
                fitting or [here],
                key=lambda n: (-places[n].weight, n != here, n in having, self.loads[n], n),
            )
            free.discard(found[shard])
        return found

    def _fits(self, shard: ShardId, node: NodeName) -> bool:
        """Whether a node has room for a shard, or had it before."""
        return self.fleet.owners[shard] == node or self.fleet.sizes[shard] <= self.room[node]

    def _move(self, shard: ShardId, node: NodeName) -> None:
        here, size, load = self.owners[shard], self.fleet.sizes[shard], self.load[shard]
        began = self.fleet.owners[shard]
        self.room[here] += size if here != began else 0
        self.room[node] -= size if node != began else 0
        self.shift(here, node, load)
        del self.on[here][bisect_left(self.on[here], (load, shard))]
        insort(self.on[node], (load, shard))
        self.owners[shard] = node

    def shift(self, source: NodeName, target: NodeName, load: int) -> None:
        """Count a load for another node."""
        self.loads[source] -= load
        self.loads[target] += load

    def result(self) -> Fleet:
        """Give the fleet with its shards where they are now, and the room that is left."""
        nodes = {n: replace(place, room=self.room[n]) for n, place in self.fleet.nodes.items()}
        return replace(self.fleet, owners=self.owners, nodes=nodes)

    def misplaced(self) -> list[ShardId]:
        """List the shards that have to leave their node, the largest first."""
        return self._largest_first(
            shard
            for shard, node in self.owners.items()
            if (self.alone[shard] != node if shard in self.alone else node not in self.common)
        )

    def _largest_first(self, shards: Iterable[ShardId]) -> list[ShardId]:
        """Sort by load; of the same load come small ones, and then high numbers, first."""
        return sorted(shards, key=lambda s: (-self.load[s], self.fleet.sizes[s], -s))

    def _edge(self, node: NodeName, part: float = 1.0) -> tuple[float, float]:
        """Give the least and the most load that a node should have."""
        share, off = self.shares[node], self.threshold * part
        return share * (1 - off), share * (1 + off)

    def off(self, node: NodeName, more: int = 0) -> float:
        """Give by how much a node, with so much more, is beyond its edges; others have none."""
        if node not in self.common:
            return 0.0
        (least, most), load = self._edge(node), self.loads[node] + more
        return max(0.0, load - most, least - load)

    @property
    def distance(self) -> tuple[int, float]:
        """How many shards are misplaced, and how much load is beyond the edges."""
        return len(self.misplaced()), sum(map(self.off, self.common))

    def improve(self, *, large_first: bool) -> bool:
        """Move shards; return whether that brings the fleet nearer to its shares."""
        misplaced, off = self.distance
        for shard, node in self.alone.items():
            if self.owners[shard] != node and shard not in self.stuck:
                self._move(shard, node)
        if large_first:
            coarse = self.threshold * max(self.shares[node] for node in self.common)
            self._place(shard for shard in self.misplaced() if self.load[shard] > coarse)
            self._part_large()
        self._settle()
        self._place(self.misplaced())
        self._settle()
        if large_first:
            self._polish()
        # Sums of floats differ by their order.
        return self.distance < (misplaced, off - 1e-9 * sum(self.load.values()))

    def _settle(self) -> None:
        """Let nodes with too much give to those with too little, a pair at a time."""
        leaving: dict[NodeName, list[ShardId]] = defaultdict(list)
        for shard in self.misplaced():
            if shard not in self.alone:
                leaving[self.owners[shard]].append(shard)
        needs = {n: float(sum(self.load[s] for s in shards)) for n, shards in leaving.items()}
        emptied = sum(needs.values())
        inner = {node: self._edge(node, 1 - _SPARE) for node in self.common}
        off = [node for node in self.common if self.off(node)]
        wanted = sum(max(0.0, inner[node][0] - self.loads[node]) for node in off)
        given = {n: self.loads[n] - inner[n][1] for n in off if self.loads[n] > self.shares[n]}
        if emptied + sum(given.values()) < wanted:
            given = self._above(self._level(wanted - emptied))
        needs |= given
        gaps = self._above(self._level(sum(needs.values()), of=-1), of=-1)
        for node in given:
            leaving[node] = self._largest_first(shard for _, shard in self.on[node])
        while needs and gaps:
            self._settle_pair(needs, gaps, leaving)

    def _above(self, level: float, of: int = 1) -> dict[NodeName, float]:
        """Give what nodes have above a level, in parts of their shares; with `of` -1, below it."""
        found = {n: of * (self.loads[n] - level * self.shares[n]) for n in self.common}
        return {node: amount for node, amount in found.items() if amount > 0}

    def _level(self, amount: float, of: int = 1) -> float:
        """Find the level above which nodes have this amount together; with `of` -1, lack below."""

        def fill(node: NodeName) -> float:
            return self.loads[node] / self.shares[node]

        load = share = level = 0.0
        for node in sorted(self.common, key=fill, reverse=of > 0):
            if share and of * (fill(node) - level) <= 0:
                break
            load, share = load + self.loads[node], share + self.shares[node]
            level = (load - of * amount) / share
        return level

    def _settle_pair(
        self,
        needs: dict[NodeName, float],
        gaps: dict[NodeName, float],
        leaving: dict[NodeName, list[ShardId]],
    ) -> None:
        """Move what fits between the two nodes that are furthest off; drop the one that is done."""
        source, target = max(needs, key=needs.__getitem__), max(gaps, key=gaps.__getitem__)
        left = most = min(needs[source], gaps[target])
        full = False
        for shard in leaving[source]:
            if self.load[shard] > left:
                continue
            if self._fits(shard, target):
                self._move(shard, target)
                left -= self.load[shard]
            else:
                full = True
        leaving[source] = [shard for shard in leaving[source] if self.owners[shard] == source]
        if source not in self.common or self.off(source) or self.off(target):
            left -= self._move_one_more(left, source, target, leaving[source])
        needs[source] -= most - left
        gaps[target] -= most - left
        if full or (left < most and gaps[target] < needs[source]):
            del gaps[target]
        else:
            del needs[source]

    def _move_one_more(
        self, left: float, source: NodeName, target: NodeName, shards: list[ShardId]
    ) -> int:
        """Move the smallest shard that covers what is left, within the edges; return its load."""
        most = self._edge(target)[1] - self.loads[target]
        if source in self.common:
            most = min(most, self.loads[source] - self._edge(source)[0])
        covering = [shard for shard in shards if left <= self.load[shard] <= most]
        found = [shard for shard in covering if self._fits(shard, target)]
        if not found:
            return 0
        shard = min(found, key=self.load.__getitem__)
        shards.remove(shard)
        self._move(shard, target)
        return self.load[shard]

    def _place(self, shards: Iterable[ShardId]) -> None:
        """Give each shard that has to leave to the node that suits it best."""
        for shard in shards:
            if shard in self.alone:
                continue
            if (node := self._best(shard)) is None:
                self.stuck.add(shard)
            else:
                self._move(shard, node)

    def _best(self, shard: ShardId) -> NodeName | None:
        """Give the node that is least full with a shard; first those that can give way to it."""
        load = self.load[shard]
        return min(
            (n for n in self.common if self._fits(shard, n)),
            key=lambda n: (self._firm(n) + load > 0, (self.loads[n] + load) / self.shares[n]),
            default=None,
        )

    def _large(self, node: NodeName) -> list[tuple[int, ShardId]]:
        """List shards that are larger than the threshold, ascending: others are easy to settle."""
        least = self.threshold * self.shares[node]
        return self.on[node][bisect_left(self.on[node], (least, -1)) :]

    def _firm(self, node: NodeName) -> float:
        """Give by how much the large shards alone are above the node's edge."""
        return sum(load for load, _ in self._large(node)) - self._edge(node)[1]

    def _part_large(self) -> None:
        """Move large shards away from nodes that are above their edge by these alone."""
        for node in self.common:
            while (over := self._firm(node)) > 0:
                large = self._large(node)
                load, shard = next((one for one in large if one[0] >= over), large[-1])
                target = self._best(shard)
                if target in (None, node) or self._firm(target) + load > 0:
                    break
                self._move(shard, target)

    def _polish(self) -> None:
        """Take the improvement step that is worth most of the node that is furthest off."""
        given_up: set[NodeName] = set()
        while off := [n for n in self.common if n not in given_up and self.off(n)]:
            node = max(off, key=self.off)
            over = self.loads[node] > self.shares[node]
            pairs = [(node, other) if over else (other, node) for other in self.common]
            found = [step for a, b in pairs if a != b for step in self._exchanges(a, b)]
            if not found:
                given_up.add(node)
                self._note_large(node)
                continue
            for shard, to in max(found)[1]:
                self._move(shard, to)
            given_up.clear()

    def _exchanges(
        self, source: NodeName, target: NodeName
    ) -> Iterator[tuple[float, list[tuple[ShardId, NodeName]]]]:
        """Yield steps between two nodes: what each is worth, and what goes where.

        What a shift of load changes is a sum of four pieces with a kink each: it is best between
        the second and the third.
        """
        here = self.on[source]
        least, most = self._edge(source)
        low, high = self._edge(target)
        has, lacks = self.loads[source], self.loads[target]
        wanted = sorted([has - most, has - least, low - lacks, high - lacks])[1]
        now = self.off(source) + self.off(target)
        for returned in [None, *self.on[target]]:
            back = returned[0] if returned else 0
            first = bisect_left(here, (back + wanted, -1))
            for load, shard in here[max(0, first - 1) : first + 1]:
                gain = now - self.off(source, back - load) - self.off(target, load - back)
                worth = gain - _WORTH * (load + back)
                moves = [(shard, target), *([(returned[1], source)] if returned else [])]
                if worth > 0 and all(self._fits(*one) for one in moves):
                    yield worth, moves

    def _note_large(self, node: NodeName) -> None:
        """Note the shards of a node above its edge that are larger than any room."""
        room = max((self.room[n] for n in self.common if n != node), default=math.inf)
        if self.loads[node] > self.shares[node]:
            self.stuck |= {s for _, s in self.on[node] if self.fleet.sizes[s] > room}
