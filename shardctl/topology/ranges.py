"""Lists of shard numbers as people write them: `0-3,17`, `none`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

_PART = re.compile(r"(\d+)(?:\s*-\s*(\d+))?")


class Range(NamedTuple):
    """The numbers from `first` to `last`, both included."""

    first: int
    last: int


def parse(text: str) -> tuple[Range, ...]:
    """Read `0-3,17` into ranges, in the order written and not expanded; `none` is empty.

    Raises ValueError with a sentence for people.

    >>> parse("0-3, 17")
    (Range(first=0, last=3), Range(first=17, last=17))
    >>> parse("none")
    ()
    """
    if text.strip() == "none":
        return ()
    found = []
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None or len(part) > 40:
            raise ValueError(f"{part.strip()[:40]!r} is not a shard or a range such as 0-3")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ValueError(f"{first}-{last} is in the wrong order; write {last}-{first}")
        found.append(Range(first, last))
    return tuple(found)


def merge(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Sort ranges and join those that touch or overlap.

    >>> merge([Range(4, 5), Range(0, 3), Range(9, 9)])
    (Range(first=0, last=5), Range(first=9, last=9))
    """
    joined: list[Range] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1].last + 1:
            joined[-1] = Range(joined[-1].first, max(joined[-1].last, last))
        else:
            joined.append(Range(first, last))
    return tuple(joined)


def render(ranges: Iterable[Range]) -> str:
    """Write ranges as `parse` reads them, shortest form.

    >>> render([Range(0, 1), Range(2, 3), Range(17, 17)])
    '0-3,17'
    """
    parts = [str(a) if a == b else f"{a}-{b}" for a, b in merge(ranges)]
    return ",".join(parts) or "none"


def of(numbers: Iterable[int]) -> str:
    """Write numbers as a range list.

    >>> of([17, 0, 1, 2])
    '0-2,17'
    """
    return render(Range(n, n) for n in numbers)
