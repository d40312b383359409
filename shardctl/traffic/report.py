"""The report of a load: latencies, errors, and whether all rows exist."""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from shardctl.topology.model import ShardId
from shardctl.traffic.record import OK, Kind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from shardctl.topology.model import NodeName
    from shardctl.traffic.client_routes import Aliases
    from shardctl.traffic.proof import Flaw, Verdict
    from shardctl.traffic.record import Record


_FLAWS: tuple[Flaw, ...] = ("lost", "duplicate", "misplaced", "unknown", "astray", "stale")


@dataclass(frozen=True, slots=True)
class Failure:
    """An SQLSTATE of failed operations, how often, and its first message.

    08001 is a failed login, 08006 a connection that was lost without a message.
    """

    code: str
    count: int
    first: str
    at_s: float
    """When it came first, in seconds since the start of the load."""


@dataclass(frozen=True, slots=True)
class Logins:
    """Latencies of operations with a login each, counted from their scheduled times."""

    per_s: float
    latencies: Latencies
    late_ms: float
    """The longest delay of an operation's start, which latencies may include."""

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "per_s": self.per_s,
            **asdict(self.latencies.overall),
            "longest_moved_ms": self.latencies.longest_ms(moved=True),
            "longest_stayed_ms": self.latencies.longest_ms(moved=False),
            "late_ms": self.late_ms,
        }


@dataclass(frozen=True, slots=True)
class Report:
    """The results of a load, compared with the fleet."""

    clients: int
    aliases: Aliases
    elapsed_s: float
    operations: Mapping[str, int]
    """By kind, including failed ones."""
    acknowledged_inserts: int
    """Including those in transactions."""
    acknowledged_updates: int
    failures: tuple[Failure, ...]
    fenced: int
    """Operations that the new owner did after an error of the fence; they are not errors."""
    latencies: Latencies
    held_up_ms: float
    """The longest delay of the load's own process, which any latency may include."""
    moved: tuple[ShardId, ...]
    """Shards whose owner in the map changed during the load."""
    unserved: tuple[ShardId, ...]
    """Shards that no node served at the end; their rows could not be checked."""
    unseen: Mapping[NodeName, str]
    """Nodes that were not checked, with the reason: they may have second copies of rows."""
    verdict: Verdict
    logins: Logins | None = None
    """The open loop separately; all other numbers include it. None without one."""

    @property
    def errors(self) -> int:
        """The number of failed operations."""
        return sum(failure.count for failure in self.failures)

    @property
    def intact(self) -> bool:
        """Whether every acknowledged write exists once, on its owner; there may be errors."""
        return self.verdict.ok and not self.unserved

    @property
    def ok(self) -> bool:
        """Whether it is intact and no operation failed."""
        return self.intact and not self.failures

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        latencies = self.latencies
        return {
            "ok": self.ok,
            "clients": self.clients,
            "aliases": self.aliases,
            "elapsed_s": round(self.elapsed_s, 3),
            "operations": dict(self.operations),
            "acknowledged": {
                "inserts": self.acknowledged_inserts,
                "updates": self.acknowledged_updates,
            },
            "errors": {f.code: {"count": f.count, "first": f.first} for f in self.failures},
            "fenced": self.fenced,
            **{
                "duplicates" if flaw == "duplicate" else flaw: self.verdict.counts.get(flaw, 0)
                for flaw in _FLAWS
            },
            "examples": list(self.verdict.examples),
            "moved": list(self.moved),
            "unserved": list(self.unserved),
            "unseen": dict(self.unseen),
            "p50_ms": latencies.overall.p50_ms,
            "p99_ms": latencies.overall.p99_ms,
            "held_up_ms": self.held_up_ms,
            "longest_ms": latencies.overall.longest_ms,
            "longest_moved_ms": latencies.longest_ms(moved=True),
            "longest_stayed_ms": latencies.longest_ms(moved=False),
            "logins": self.logins.as_json() if self.logins else None,
            "seconds": [asdict(second) for second in latencies.seconds],
            "shards": [asdict(shard) for shard in latencies.shards],
        }


def operations(records: Sequence[Record]) -> dict[str, int]:
    """Count operations by kind."""
    return {kind.name: sum(record.kinds.count(kind) for record in records) for kind in Kind}


def failures(records: Sequence[Record]) -> tuple[Failure, ...]:
    """Return the failures of operations, the most frequent first."""
    counts: dict[str, int] = {}
    first: dict[str, tuple[float, str]] = {}
    for record in records:
        for number, code in enumerate(record.codes):
            if number != OK:
                counts[code] = counts.get(code, 0) + record.outcomes.count(number)
                first[code] = min(record.messages[code], first.get(code, record.messages[code]))
    found = [Failure(code, n, first[code][1], first[code][0]) for code, n in counts.items()]
    return tuple(sorted(found, key=lambda failure: -failure.count))


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


def spread(records: Iterable[Record], firsts: Sequence[int], lasts: Sequence[int]) -> Spread:
    """Sum up the operations of each client from one number to before another."""
    found = _Sum()
    for record, first, last in zip(records, firsts, lasts, strict=True):
        for number in range(first, last):
            found.add(record, number)
    return found.spread()


def measure(records: Iterable[Record], moved: Collection[ShardId]) -> Latencies:
    """Sum up all operations of clients, in one pass."""
    overall = _Sum()
    seconds: dict[int, _Sum] = defaultdict(_Sum)
    shards: dict[ShardId, _Sum] = defaultdict(_Sum)
    for record in records:
        for number, (shard, ended) in enumerate(zip(record.where, record.ended, strict=True)):
            for found in (overall, seconds[int(ended)], shards[ShardId(shard)]):
                found.add(record, number)
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

    def add(self, record: Record, number: int) -> None:
        duration = record.durations[number]
        self.count += 1
        self.longest = max(self.longest, duration)
        if record.outcomes[number] == OK:
            self._good.append(duration)
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
