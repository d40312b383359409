"""Which shards a rollout changes first, and which later; pure."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import TYPE_CHECKING

from shardctl.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from shardctl.topology.model import NodeName, ShardId

_PART = re.compile(r"(\d{1,3}(?:\.\d{1,3})?)%")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an operator asked for; without any of it there is one wave of all shards."""

    canary: int | None = None
    """So many shards first, of all nodes alternately."""
    first: tuple[ShardId, ...] | None = None
    """These shards first."""
    percents: tuple[float, ...] = ()
    """The part of all shards that has the migration after each wave."""

    def __bool__(self) -> bool:
        """Return whether anything was asked for."""
        return self.canary is not None or self.first is not None or bool(self.percents)


def parse(text: str) -> tuple[float, ...]:
    """Read `1%,10%,100%`; raises UsageError where these do not grow to 100%.

    >>> parse("1%, 10%,100%")
    (1.0, 10.0, 100.0)
    """
    parts = [_PART.fullmatch(part.strip()) for part in text.split(",")]
    found = [float(part[1]) for part in parts if part]
    rising = all(a < b for a, b in zip([0.0, *found], found, strict=False))
    if len(found) < len(parts) or not rising or found[-1] != 100:
        raise UsageError(
            f"{text!r} is not a list of waves: percentages must grow, and end with 100%",
            hint="specify waves such as 1%,10%,100%",
        )
    return tuple(found)


def split(
    pending: Mapping[NodeName, Sequence[ShardId]], wanted: Wanted
) -> tuple[tuple[ShardId, ...], ...]:
    """Divide the shards that lack a migration into waves; none of them is empty.

    Each wave takes shards of all nodes alternately, so that what is wrong with one node shows
    early. Shards that were asked for and lack nothing are left out.

    >>> split({"a": [0, 1, 2], "b": [3, 4]}, Wanted(canary=3))
    ((0, 3, 1), (4, 2))
    >>> split({"a": [0, 1, 2], "b": [3]}, Wanted(percents=(50, 100)))
    ((0, 3), (1, 2))
    >>> split({"a": [0, 1], "b": [2]}, Wanted(first=(2,)))
    ((2,), (0, 1))
    """
    ordered = _alternately(pending)
    first = _first(ordered, wanted)
    rest = [shard for shard in ordered if shard not in set(first)]
    ends = [math.ceil(len(ordered) * part / 100) for part in wanted.percents or (100,)]
    waves = [first]
    done = len(first)
    for end in ends:
        count = max(0, end - done)
        waves.append(tuple(rest[:count]))
        rest = rest[count:]
        done += count
    return tuple(wave for wave in waves if wave)


def _alternately(pending: Mapping[NodeName, Sequence[ShardId]]) -> list[ShardId]:
    rounds = zip_longest(*pending.values())
    return [shard for shard in chain.from_iterable(rounds) if shard is not None]


def _first(ordered: Sequence[ShardId], wanted: Wanted) -> tuple[ShardId, ...]:
    if wanted.first is not None:
        named: Collection[ShardId] = set(wanted.first)
        return tuple(shard for shard in ordered if shard in named)
    return tuple(ordered[: wanted.canary or 0])
