"""The record of one client: attempted writes, acknowledged ones, and latencies."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import IntEnum
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardctl.topology.model import ShardId

OK = 0
"""The outcome of an acknowledged operation; errors are indexes into `Record.codes`."""
AT_HAND = 64
"""Rows per shard that a client remembers to update and read."""


class Kind(IntEnum):
    """The kind of an operation; `both` is an insert and an update in one transaction."""

    insert = 0
    update = 1
    select = 2
    both = 3


SHOWN = 5
"""How many examples of a kind are kept."""


def row_of(shard: int, identity: int, client: int, number: int) -> str:
    """Describe a row, for people."""
    return f"shard {shard}, id {identity} (client {client}, row {number})"


@dataclass(slots=True)
class Record:
    """All operations of one client, in memory: about 20 bytes per row and 20 per operation.

    Only the client's own thread writes it. Other threads may read it at the same time: the arrays
    only grow at their end, and the length of the last one (`ended`, `shards`) is valid for all.
    """

    client: int
    ids: array[int] = field(default_factory=lambda: array("q"))
    """By row number: its id, 0 while unknown."""
    acknowledged: array[int] = field(default_factory=lambda: array("i"))
    """By number: the last acknowledged version; 0 before the insert's acknowledgement."""
    attempted: array[int] = field(default_factory=lambda: array("i"))
    """By number: the highest version sent."""
    shards: array[int] = field(default_factory=lambda: array("i"))
    """By number: the row's shard."""

    where: array[int] = field(default_factory=lambda: array("i"))
    """By operation: the shard."""
    kinds: array[int] = field(default_factory=lambda: array("b"))
    outcomes: array[int] = field(default_factory=lambda: array("h"))
    durations: array[float] = field(default_factory=lambda: array("f"))
    """Seconds from the request for a connection to the answer."""
    ended: array[float] = field(default_factory=lambda: array("d"))
    """Seconds since the start of the load."""

    codes: list[str] = field(default_factory=lambda: ["ok"])
    messages: dict[str, tuple[float, str]] = field(default_factory=dict)
    """Per code: the time of its first error, in seconds since the start, and its message."""
    inserts: int = 0
    """Acknowledged inserts."""
    updates: int = 0
    fenced: int = 0
    """Operations that the new owner did after an error of the fence."""
    stale: int = 0
    """Reads and updates that missed an acknowledged version."""
    stale_shown: list[str] = field(default_factory=list)
    _at_hand: dict[int, list[int]] = field(default_factory=dict)
    _random: Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = Random(self.client)  # noqa: S311  # no secret; every run draws alike

    def attempt_insert(self, shard: ShardId) -> int:
        """Record a row before it is sent; return its number."""
        number = len(self.shards)
        self.ids.append(0)
        self.acknowledged.append(0)
        self.attempted.append(1)
        self.shards.append(shard)
        return number

    def inserted(self, number: int, identity: int) -> None:
        """Record that a row was acknowledged, and its id."""
        self.ids[number] = identity
        self.acknowledged[number] = 1
        self.inserts += 1
        rows = self._at_hand.setdefault(self.shards[number], [])
        if len(rows) < AT_HAND:
            rows.append(number)
        else:
            rows[int(self._random.random() * AT_HAND)] = number

    def attempt_update(self, number: int) -> int:
        """Record the next version of a row before it is sent; return the version."""
        self.attempted[number] += 1
        return self.attempted[number]

    def updated(self, number: int, version: int) -> None:
        """Record that a version was acknowledged."""
        self.acknowledged[number] = version
        self.updates += 1

    def pick(self, shard: ShardId) -> int | None:
        """Choose an acknowledged row of `shard`; None if it has none."""
        rows = self._at_hand.get(shard)
        return rows[int(self._random.random() * len(rows))] if rows else None

    def found_stale(self, number: int, expected: int, seen: int | None) -> None:
        """Record that an acknowledged row was missing, or had an impossible version."""
        self.stale += 1
        if len(self.stale_shown) < SHOWN:
            row = row_of(self.shards[number], self.ids[number], self.client, number)
            met = "no row" if seen is None else f"version {seen}"
            known = f"{row}: version {expected} was acknowledged"
            self.stale_shown.append(f"{known}, but a later read found {met}")

    def done(self, shard: ShardId, kind: Kind, outcome: int, duration: float, ended: float) -> None:
        """Record an operation that has ended, with or without an error."""
        self.where.append(shard)
        self.kinds.append(kind)
        self.outcomes.append(outcome)
        self.durations.append(duration)
        self.ended.append(ended)

    def failed(self, code: str, message: str, at: float) -> int:
        """Return the index of an error's code, and keep its first message."""
        if code not in self.messages:
            self.messages[code] = at, message
            self.codes.append(code)
        return self.codes.index(code)
