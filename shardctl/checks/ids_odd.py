"""What is odd about an id, from its number only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from shardctl.ids.layout import Layout
    from shardctl.topology.model import ShardId

Code = Literal["negative", "duplicate", "other_shard", "future", "other_key", "no_key", "locked"]

AHEAD_MS = 10_000
"""The allowed lead of ids over their node's clock: the strict generator has one in a burst."""


@dataclass(frozen=True, slots=True)
class Odd:
    """One kind of fault in one shard's table.

    `example` is the id, or the key where the table has no id; None where nothing was read.
    `other` is the shard that the example belongs to. `count` is None where not all rows were
    read.
    """

    shard: ShardId
    table: str
    code: Code
    example: int | None = None
    other: int | None = None
    count: int | None = None


@dataclass(frozen=True, slots=True)
class Ruler:
    """What ids of a layout are measured with at a moment: `limit` is the first future id."""

    layout: Layout
    limit: int

    @classmethod
    def at(cls, layout: Layout, now_ms: int) -> Ruler:
        """Make the ruler for a node whose clock shows `now_ms` (Unix time)."""
        ticks = (now_ms + AHEAD_MS - layout.epoch_ms) // layout.tick_ms + 1
        return cls(layout, ticks << layout.shard_bits + layout.sequence_bits)

    def made_for(self, number: int) -> int:
        """Give the shard that an id claims, also of a number that no generator made."""
        return number >> self.layout.sequence_bits & self.layout.max_shard

    def fault(self, number: int, shard: int) -> Literal["negative", "other_shard", "future"] | None:
        """Return what is odd about an id in `shard`; the first that holds explains the rest."""
        if number < 0:
            return "negative"
        if self.made_for(number) != shard:
            return "other_shard"
        return "future" if number >= self.limit else None
