"""The report of a load: latencies, errors, and whether all rows exist."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from shardctl.traffic.record import OK, Kind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardctl.topology.model import NodeName, ShardId
    from shardctl.traffic.client_routes import Aliases
    from shardctl.traffic.latency import Latencies
    from shardctl.traffic.proof import Flaw, Verdict
    from shardctl.traffic.record import Record

_OTHER_FLAWS: tuple[Flaw, ...] = ("misplaced", "unknown", "astray", "stale")


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
    def lost(self) -> int:
        """Acknowledged rows that are missing, or older than acknowledged."""
        return self.verdict.counts.get("lost", 0)

    @property
    def duplicates(self) -> int:
        """Rows that exist twice, or ids that two rows have."""
        return self.verdict.counts.get("duplicate", 0)

    @property
    def longest_ms(self) -> float | None:
        """The longest latency of any operation."""
        return self.latencies.overall.longest_ms

    @property
    def longest_moved_ms(self) -> float | None:
        """The longest on shards that moved; None if none did."""
        return self.latencies.longest_ms(moved=True)

    @property
    def longest_stayed_ms(self) -> float | None:
        """The longest on shards that stayed."""
        return self.latencies.longest_ms(moved=False)

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
            "lost": self.lost,
            "duplicates": self.duplicates,
            **{flaw: self.verdict.counts.get(flaw, 0) for flaw in _OTHER_FLAWS},
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
