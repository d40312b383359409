"""The layout of an id, and arithmetic on it; pure and fast to import."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

from shardctl.errors import Misused, UsageError
from shardctl.ids import times

HASH_DIGITS = 15
"""Hexadecimal digits of a key's hash: 60 bits fit every language's and SQL's signed 64."""

INSTAGRAM_EPOCH_MS = 1_314_220_021_721
"""2011-08-24T21:07:01.721Z, the epoch of the published function, in Unix milliseconds."""


class IdOutOfRange(UsageError):
    """A number that is not an id of this layout."""

    def __init__(self, number: int, low: int, high: int) -> None:
        super().__init__(f"{number} is out of range: ids of this layout are {low} to {high}")


class Decoded(NamedTuple):
    """The parts of an id; `time_ms` is Unix time in ms, a whole number of ticks after the epoch."""

    time_ms: int
    shard: int
    sequence: int


@dataclass(frozen=True, slots=True)
class Layout:
    """A split of 64 bits into time, shard and sequence, most significant first.

    What reads it has seen that each is 1 or more, as the tick is, and their sum 64 or less. A sum
    of bits below 64 packs into the low bits. The default is Instagram's.

    >>> Layout().decode(11637205501278089)
    Decoded(time_ms=1315607284721, shard=1341, sequence=905)
    >>> Layout().encode(1315607284721, 1341, 5001)
    11637205501278089
    """

    epoch_ms: int = INSTAGRAM_EPOCH_MS
    tick_ms: int = 1
    time_bits: int = 41
    shard_bits: int = 13
    sequence_bits: int = 10

    @classmethod
    def of(cls, settings: object) -> Layout:
        """Return the layout of a topology's id settings, or of what else has such fields."""
        return cls(*(getattr(settings, one.name) for one in fields(cls)))

    def __str__(self) -> str:
        return (
            f"{self.time_bits}/{self.shard_bits}/{self.sequence_bits} bits of {self.tick_ms} ms "
            f"since {times.render(self.epoch_ms)}"
        )

    @property
    def bits(self) -> int:
        """Width of an id."""
        return self.time_bits + self.shard_bits + self.sequence_bits

    @property
    def usable_time_bits(self) -> int:
        """Bits of time that leave a bigint positive."""
        return min(self.time_bits, 63 - self.shard_bits - self.sequence_bits)

    @property
    def max_shard(self) -> int:
        """The highest shard number."""
        return (1 << self.shard_bits) - 1

    @property
    def lowest_id(self) -> int:
        """The lowest id: 0, or the lowest bigint where the time reaches the sign bit."""
        return -(1 << 63) if self.bits == 64 else 0

    @property
    def highest_id(self) -> int:
        """The highest id."""
        return (1 << min(self.bits, 63)) - 1

    @property
    def last_ms(self) -> int:
        """The last Unix time in ms that gives a positive id."""
        return self.epoch_ms + (1 << self.usable_time_bits) * self.tick_ms - 1

    def encode(self, time_ms: int, shard: int = 0, sequence: int = 0) -> int:
        """Compose an id; `sequence` counts modulo 2^sequence_bits.

        With sequence 0 it is the smallest that `shard` can have made at or after `time_ms`, and
        with shard 0 that of any shard: `WHERE id >= encode(time_ms)` scans by time. Raises
        time_out_of_range instead of returning a negative id, and shard_out_of_range.
        """
        if not self.epoch_ms <= time_ms <= self.last_ms:
            raise Misused(
                "time_out_of_range",
                f"{times.render(time_ms)} is out of range: times of this layout are "
                f"{times.render(self.epoch_ms)} to {times.render(self.last_ms)}",
            )
        if not 0 <= shard <= self.max_shard:
            raise Misused(
                "shard_out_of_range",
                f"shard {shard} is out of range: shards of this layout are 0 to {self.max_shard}",
            )
        ticks = (time_ms - self.epoch_ms) // self.tick_ms
        low = shard << self.sequence_bits | sequence & (1 << self.sequence_bits) - 1
        return ticks << self.shard_bits + self.sequence_bits | low

    def decode(self, number: int) -> Decoded:
        """Split an id into its parts; a negative one (bits = 64) has a time past the sign bit.

        Raises IdOutOfRange.
        """
        if not self.lowest_id <= number <= self.highest_id:
            raise IdOutOfRange(number, self.lowest_id, self.highest_id)
        number &= (1 << 64) - 1
        return Decoded(
            self.epoch_ms + (number >> self.shard_bits + self.sequence_bits) * self.tick_ms,
            number >> self.sequence_bits & self.max_shard,
            number & (1 << self.sequence_bits) - 1,
        )

    def shard_in(self, number: int) -> int | None:
        """Give the shard in the bits of a number; None where no generator gives that number.

        >>> Layout().shard_in(11637205501278089), Layout().shard_in(-1)
        (1341, None)
        """
        if not 0 <= number <= self.highest_id:
            return None
        return number >> self.sequence_bits & self.max_shard
