"""The planner of `rebalance`: which shards go where, so that each node has its share; pure.

As Citus's rebalancer, it takes from nodes above their share and gives to those below, and does
nothing while all are within a threshold. But it settles a pair of nodes at a time, with the largest
shards that fit, so that there are few moves of many shards. Shards that are large beside a share
are placed before that, and improvement steps follow: one moves, perhaps in exchange for another.
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
    while (tried := _Pass(now.fleet, threshold)).improve():
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
    """Let the step that improves most come first; of a part, take none that does not improve.

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
    while left and len(ordered) < most:
        step = max(left, key=gain)
        if not whole and gain(step) <= (0, 0.0):
            break
        left.remove(step)
        ordered.append(step)
        now.shift(step.source, step.target, loads[step])
    return ordered


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
        free = {node: place.weight for node, place in places.items() if place.weight > 0}
        rest = sum(self.load.values())
        found: dict[ShardId, NodeName] = {}
        for shard in sorted(self.load, key=lambda shard: (-self.load[shard], shard)):
            here, load = self.owners[shard], self.load[shard]
            if len(free) < 2 or load * sum(free.values()) <= rest * max(free.values()):
                break
            fitting = [node for node in free if self._fits(shard, node)]
            if not fitting:
                self.stuck.add(shard)
            found[shard] = min(
                fitting or [here],
                key=lambda n: (-places[n].weight, n != here, self.loads[n], n),
            )
            free.pop(found[shard], None)
            rest -= load
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

    def improve(self) -> bool:
        """Move shards; return whether that brings the fleet nearer to its shares."""
        misplaced, off = self.distance
        for shard, node in self.alone.items():
            if self.owners[shard] != node and shard not in self.stuck:
                self._move(shard, node)
        coarse = self.threshold * max(self.shares[node] for node in self.common)
        self._place(shard for shard in self.misplaced() if self.load[shard] > coarse)
        self._part_large()
        self._settle()
        self._place(self.misplaced())
        self._polish()
        # Sums of floats differ by their order.
        return self.distance < (misplaced, off - 1e-9 * sum(self.load.values()))

    def _leaving(self, node: NodeName) -> list[ShardId]:
        """List the shards that a node may give, the largest first."""
        return self._largest_first(shard for _, shard in self.on[node] if shard not in self.alone)

    def _excess(self, node: NodeName) -> float:
        """Give what a node has beyond its share; negative for what it lacks."""
        return self.loads[node] - self.shares[node]

    def _need(self, node: NodeName) -> float:
        """Give what has to leave a node or to come to it, so that it is not at its very edge."""
        if node not in self.common:
            return max(0.0, self._excess(node))
        least, most = self._edge(node, 1 - _SPARE)
        return max(self.loads[node] - most, least - self.loads[node]) if self.off(node) else 0.0

    def _settle(self) -> None:
        """Let nodes with too much give to those with too little, a pair at a time."""
        given_up: set[tuple[NodeName, NodeName]] = set()
        while True:
            needs = {node: self._need(node) for node in self.fleet.nodes}
            pairs = [
                (min(max(needs[a], needs[b]), self._excess(a), -self._excess(b)), a, b)
                for a in self.fleet.nodes
                for b in self.common
                if (needs[a] or needs[b]) and (a, b) not in given_up
                if self._excess(a) > 0 > self._excess(b)
            ]
            if not pairs:
                return
            amount, source, target = max(pairs)
            left = amount
            for shard in self._leaving(source):
                if self.load[shard] <= left and self._fits(shard, target):
                    self._move(shard, target)
                    left -= self.load[shard]
            if left == amount:
                given_up.add((source, target))

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
        """Give the node that is least full with a shard."""
        return min(
            (node for node in self.common if self._fits(shard, node)),
            key=lambda node: (self.loads[node] + self.load[shard]) / self.shares[node],
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
                enough = [one for one in large if one[0] >= over] or large[-1:]
                load, shard = min(enough, key=lambda one: (one[0], -one[1]))
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
