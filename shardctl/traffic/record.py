"""What one client did: every write it tried, what was acknowledged, how long each took."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import IntEnum
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardctl.topology.model import ShardId

OK = 0
"""The outcome of an operation that was acknowledged; others are places in `Record.codes`."""
AT_HAND = 64
"""Rows of a shard that a client keeps at hand to update and read."""


class Kind(IntEnum):
    """What an operation does; `both` is an insert and an update in one transaction."""

    insert = 0
    update = 1
    select = 2
    both = 3


SHOWN = 5
"""How many of a kind are kept as examples."""


@dataclass(frozen=True, slots=True)
class Stale:
    """A row that was met at another version than it must have; `seen` None is no row at all."""

    shard: int
    number: int
    expected: int
    seen: int | None


@dataclass(slots=True)
class Record:
    """All that one client did, in memory: about 20 bytes a row and 20 bytes an operation.

    Written by the client's own thread only. Others may read while it goes on: the arrays only
    grow at their end, and what is appended last (`ended`, `shards`) tells how far they reach.
    """

    client: int
    ids: array[int] = field(default_factory=lambda: array("q"))
    """By a row's number: its id, 0 until it is known."""
    acknowledged: array[int] = field(default_factory=lambda: array("i"))
    """By number: the version acknowledged last; 0 while the insert itself is not."""
    attempted: array[int] = field(default_factory=lambda: array("i"))
    """By number: the highest version that was sent."""
    shards: array[int] = field(default_factory=lambda: array("i"))
    """By number: where the row belongs."""

    where: array[int] = field(default_factory=lambda: array("i"))
    """By operation: the shard."""
    kinds: array[int] = field(default_factory=lambda: array("b"))
    outcomes: array[int] = field(default_factory=lambda: array("h"))
    durations: array[float] = field(default_factory=lambda: array("f"))
    """Seconds, from before the connection was asked for until the answer was there."""
    ended: array[float] = field(default_factory=lambda: array("d"))
    """Seconds since the load began."""

    codes: list[str] = field(default_factory=lambda: ["ok"])
    messages: dict[str, tuple[float, str]] = field(default_factory=dict)
    """When every code came first, in seconds since the load began, and what was said then."""
    inserts: int = 0
    """Inserts that were acknowledged."""
    updates: int = 0
    fenced: int = 0
    """Operations that met the fence and were done by the new owner."""
    stale: int = 0
    """Reads and updates that did not meet the row that was acknowledged before."""
    stale_shown: list[Stale] = field(default_factory=list)
    _at_hand: dict[int, list[int]] = field(default_factory=dict)
    _random: Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = Random(self.client)  # noqa: S311  # no secret; every run draws alike

    def attempt_insert(self, shard: ShardId) -> int:
        """Note a row before it is sent; give its number."""
        number = len(self.shards)
        self.ids.append(0)
        self.acknowledged.append(0)
        self.attempted.append(1)
        self.shards.append(shard)
        return number

    def inserted(self, number: int, identity: int) -> None:
        """Note that a row was acknowledged, and under which id."""
        self.ids[number] = identity
        self.acknowledged[number] = 1
        self.inserts += 1
        rows = self._at_hand.setdefault(self.shards[number], [])
        if len(rows) < AT_HAND:
            rows.append(number)
        else:
            rows[int(self._random.random() * AT_HAND)] = number

    def attempt_update(self, number: int) -> int:
        """Note the next version of a row before it is sent; give the version."""
        self.attempted[number] += 1
        return self.attempted[number]

    def updated(self, number: int, version: int) -> None:
        """Note that a version was acknowledged."""
        self.acknowledged[number] = version
        self.updates += 1

    def pick(self, shard: ShardId) -> int | None:
        """Choose a row of `shard` whose insert was acknowledged; None where there is none yet."""
        rows = self._at_hand.get(shard)
        return rows[int(self._random.random() * len(rows))] if rows else None

    def found_stale(self, number: int, expected: int, seen: int | None) -> None:
        """Note that an acknowledged row was not there, or at a version that it cannot have."""
        self.stale += 1
        if len(self.stale_shown) < SHOWN:
            self.stale_shown.append(Stale(self.shards[number], number, expected, seen))

    def done(self, shard: ShardId, kind: Kind, outcome: int, duration: float, ended: float) -> None:
        """Note an operation that has ended, well or not."""
        self.where.append(shard)
        self.kinds.append(kind)
        self.outcomes.append(outcome)
        self.durations.append(duration)
        self.ended.append(ended)

    def failed(self, code: str, message: str, at: float) -> int:
        """Give the number of an error's code, and keep the first message that came with it."""
        if code not in self.messages:
            self.messages[code] = at, message
            self.codes.append(code)
        return self.codes.index(code)
