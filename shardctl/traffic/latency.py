"""Latencies of operations: by second, by shard, overall."""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from shardctl.topology.model import ShardId
from shardctl.traffic.record import OK

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from shardctl.traffic.record import Record


class Done(NamedTuple):
    """An operation that has ended; `ended` is in seconds since the start of the load."""

    shard: ShardId
    ok: bool
    duration: float
    ended: float


@dataclass(frozen=True, slots=True)
class Spread:
    """Latencies of some operations, in ms; None without operations.

    p50 and p99 count only acknowledged operations: errors are quick, or are timeouts. The longest
    counts all.
    """

    operations: int
    errors: int
    p50_ms: float | None
    p99_ms: float | None
    longest_ms: float | None


@dataclass(frozen=True, slots=True)
class ShardLatency:
    """The operations on one shard."""

    shard: ShardId
    moved: bool
    operations: int
    errors: int
    longest_ms: float


@dataclass(frozen=True, slots=True)
class Latencies:
    """The latencies of a whole load; second number 0 is its first."""

    overall: Spread
    seconds: tuple[Spread, ...]
    shards: tuple[ShardLatency, ...]

    def longest_ms(self, *, moved: bool) -> float | None:
        """Return the longest wait on shards that moved, or that stayed; None without any."""
        return max((s.longest_ms for s in self.shards if s.moved == moved), default=None)


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """Return the smallest value that at least this share does not exceed; None without values.

    >>> percentile([1, 2, 3, 4], 0.5), percentile([1, 2, 3, 4], 0.99), percentile([], 0.5)
    (2, 4, None)
    """
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


def done(record: Record, first: int = 0, last: int | None = None) -> Iterator[Done]:
    """Yield a client's operations from number `first` to before `last`.

    None is all until now, while the client continues.
    """
    # `ended` is appended last: its length is valid for all arrays.
    for i in range(first, len(record.ended) if last is None else last):
        ok = record.outcomes[i] == OK
        yield Done(ShardId(record.where[i]), ok, record.durations[i], record.ended[i])


def spread(operations: Iterable[Done]) -> Spread:
    """Sum up operations."""
    found = _Sum()
    for one in operations:
        found.add(one)
    return found.spread()


def measure(records: Iterable[Record], moved: Collection[ShardId]) -> Latencies:
    """Sum up all operations of clients, in one pass."""
    overall = _Sum()
    seconds: dict[int, _Sum] = defaultdict(_Sum)
    shards: dict[ShardId, _Sum] = defaultdict(_Sum)
    for record in records:
        for one in done(record):
            overall.add(one)
            seconds[int(one.ended)].add(one)
            shards[one.shard].add(one)
    return Latencies(
        overall.spread(),
        # Seconds in which no operation ended are included: they show stalls.
        tuple(seconds[s].spread() for s in range(max(seconds, default=-1) + 1)),
        tuple(
            ShardLatency(s, s in moved, of.count, of.errors, round(of.longest * 1000, 3))
            for s, of in sorted(shards.items())
        ),
    )


class _Sum:
    def __init__(self) -> None:
        self.count = 0
        self.errors = 0
        self.longest = 0.0
        self._good = array("f")

    def add(self, one: Done) -> None:
        self.count += 1
        self.longest = max(self.longest, one.duration)
        if one.ok:
            self._good.append(one.duration)
        else:
            self.errors += 1

    def spread(self) -> Spread:
        ordered = sorted(self._good)
        p50, p99 = percentile(ordered, 0.5), percentile(ordered, 0.99)
        longest = self.longest if self.count else None
        return Spread(self.count, self.errors, *map(_milliseconds, (p50, p99, longest)))


def _milliseconds(seconds: float | None) -> float | None:
    """Convert seconds to ms, rounded to the microsecond."""
    return None if seconds is None else round(seconds * 1000, 3)
