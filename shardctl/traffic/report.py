"""What a load has found: how long everything took, what failed, and whether all rows are there."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from shardctl.traffic.record import OK, Kind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardctl.topology.model import NodeName, ShardId
    from shardctl.traffic.compare import Verdict
    from shardctl.traffic.latency import Latencies
    from shardctl.traffic.record import Record
    from shardctl.traffic.ways import Aliases


@dataclass(frozen=True, slots=True)
class Failure:
    """An SQLSTATE that operations failed with, how often, and what was said the first time.

    08001 is a login that failed, 08006 a connection that broke off without a word.
    """

    code: str
    count: int
    first: str
    at_s: float
    """When it came first, in seconds since the load began."""


@dataclass(frozen=True, slots=True)
class Logins:
    """What operations with a login each have seen, counted from the instant each was due."""

    per_s: float
    latencies: Latencies
    late_ms: float
    """How late an operation began at the worst; so much of any of these may be the load's own."""

    def as_json(self) -> dict[str, Any]:
        """Write it as values of JSON."""
        overall = self.latencies.overall
        return {
            "per_s": self.per_s,
            "operations": overall.operations,
            "errors": overall.errors,
            "p50_ms": overall.p50_ms,
            "p99_ms": overall.p99_ms,
            "longest_ms": overall.longest_ms,
            "longest_moved_ms": self.latencies.longest_ms(moved=True),
            "longest_stayed_ms": self.latencies.longest_ms(moved=False),
            "late_ms": self.late_ms,
        }


@dataclass(frozen=True, slots=True)
class Report:
    """A load from its begin to its end, compared with the fleet."""

    clients: int
    aliases: Aliases
    elapsed_s: float
    operations: Mapping[str, int]
    """By kind, failed ones too."""
    acknowledged_inserts: int
    """With those in transactions."""
    acknowledged_updates: int
    failures: tuple[Failure, ...]
    fenced: int
    """Operations that met the fence and were done by the new owner; no errors."""
    latencies: Latencies
    held_up_ms: float
    """The longest that the load's own process was held up: so much of any wait may be its own."""
    moved: tuple[ShardId, ...]
    """Shards whose owner in the map was another at the end than at the begin."""
    unserved: tuple[ShardId, ...]
    """Shards that no node served at the end; their rows could not be looked for."""
    unseen: Mapping[NodeName, str]
    """Nodes that do not count, with the reason: a second copy of a row there is not found."""
    verdict: Verdict
    logins: Logins | None = None
    """The open loop by itself; it is also in all other numbers. None without one."""

    @property
    def errors(self) -> int:
        """How many operations failed."""
        return sum(failure.count for failure in self.failures)

    @property
    def lost(self) -> int:
        """Acknowledged rows that are not there, or older than was acknowledged."""
        return self.verdict.counts.get("lost", 0)

    @property
    def duplicates(self) -> int:
        """Rows that are there twice, or ids given out twice."""
        return self.verdict.counts.get("duplicate", 0)

    @property
    def misplaced(self) -> int:
        """Rows in another shard than their id says."""
        return self.verdict.counts.get("misplaced", 0)

    @property
    def unknown(self) -> int:
        """Rows that nobody tried to write."""
        return self.verdict.counts.get("unknown", 0)

    @property
    def astray(self) -> int:
        """Rows in a shard that is live on a node which does not own it, and not on its owner."""
        return self.verdict.counts.get("astray", 0)

    @property
    def stale(self) -> int:
        """Reads and updates that did not meet what was acknowledged before."""
        return self.verdict.counts.get("stale", 0)

    @property
    def longest_ms(self) -> float | None:
        """The longest that any operation took."""
        return self.latencies.overall.longest_ms

    @property
    def longest_moved_ms(self) -> float | None:
        """The longest on shards that moved; None where none did."""
        return self.latencies.longest_ms(moved=True)

    @property
    def longest_stayed_ms(self) -> float | None:
        """The longest on shards that stayed."""
        return self.latencies.longest_ms(moved=False)

    @property
    def intact(self) -> bool:
        """Whether every acknowledged write is where it must be, once; errors may have been."""
        return self.verdict.ok and not self.unserved

    @property
    def ok(self) -> bool:
        """Whether it is intact and no operation failed."""
        return self.intact and not self.failures

    def as_json(self) -> dict[str, Any]:
        """Write it as values of JSON."""
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
            "lost": self.lost,
            "duplicates": self.duplicates,
            "misplaced": self.misplaced,
            "unknown": self.unknown,
            "astray": self.astray,
            "stale": self.stale,
            "examples": list(self.verdict.examples),
            "moved": list(self.moved),
            "unserved": list(self.unserved),
            "unseen": dict(self.unseen),
            "p50_ms": latencies.overall.p50_ms,
            "p99_ms": latencies.overall.p99_ms,
            "held_up_ms": self.held_up_ms,
            "longest_ms": self.longest_ms,
            "longest_moved_ms": self.longest_moved_ms,
            "longest_stayed_ms": self.longest_stayed_ms,
            "logins": self.logins.as_json() if self.logins else None,
            "seconds": [asdict(second) for second in latencies.seconds],
            "shards": [asdict(shard) for shard in latencies.shards],
        }


def operations(records: Sequence[Record]) -> dict[str, int]:
    """Count operations by kind."""
    return {kind.name: sum(record.kinds.count(kind) for record in records) for kind in Kind}


def failures(records: Sequence[Record]) -> tuple[Failure, ...]:
    """List what operations failed with, the most frequent first."""
    counts: dict[str, int] = {}
    first: dict[str, tuple[float, str]] = {}
    for record in records:
        for number, code in enumerate(record.codes):
            if number != OK:
                counts[code] = counts.get(code, 0) + record.outcomes.count(number)
                first[code] = min(record.messages[code], first.get(code, record.messages[code]))
    found = [Failure(code, n, first[code][1], first[code][0]) for code, n in counts.items()]
    return tuple(sorted(found, key=lambda failure: -failure.count))
