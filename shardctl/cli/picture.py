"""Numbers as people read them, and sizes as bars and strips of characters."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl import meter

if TYPE_CHECKING:
    from collections.abc import Sequence

size = meter.size

UNKNOWN = "?"
"""What a strip shows for a shard whose size is not known."""


@dataclass(frozen=True, slots=True)
class Palette:
    """The characters of a picture: shades from nothing to most, and parts of a bar."""

    shades: str
    bar: str
    edge: str
    ellipsis: str


BLOCKS = Palette(" ▁▂▃▄▅▆▇█", "▏▎▍▌▋▊▉█", "│", "…")
ASCII = Palette(" .:-=+*%#", "#", "|", "...")


def palette(encoding: str | None) -> Palette:
    """Choose characters that `encoding` has; None stands for one that nobody knows.

    >>> palette("utf-8") is BLOCKS, palette("ascii") is ASCII, palette("latin-1") is ASCII
    (True, True, True)
    """
    try:
        f"{BLOCKS.shades}{BLOCKS.bar}{BLOCKS.edge}{BLOCKS.ellipsis}".encode(encoding or "")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return BLOCKS


def number(count: int | None) -> str:
    """Write a count, shortened from 10,000 on.

    >>> number(9999), number(12345), number(2_345_678), number(1_500_000_000), number(None)
    ('9,999', '12 k', '2.3 M', '1.5 G', '-')
    """
    if count is None:
        return "-"
    if count < 10_000:
        return f"{count:,}"
    value, unit = count / 1000, "k"
    for larger in ("M", "G", "T"):
        if value < 999.5:
            break
        value, unit = value / 1000, larger
    return f"{value:.1f} {unit}" if value < 9.95 else f"{value:.0f} {unit}"


def duration(seconds: float | None) -> str:
    """Write a duration with its two largest units.

    >>> duration(59), duration(3601), duration(273_600), duration(0.25), duration(None)
    ('59s', '1h 0m', '3d 4h', '0s', '-')
    """
    if seconds is None:
        return "-"
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}d {hour}h"
    if hours:
        return f"{hour}h {minute}m"
    return f"{minute}m {second}s" if minutes else f"{second}s"


def shorten(ranges: str, *, parts: int = 12, ellipsis: str | None = None) -> str:
    """Keep the first `parts` of a range list, and say how many more there are.

    >>> shorten("0-3,7,9,12-14", parts=2, ellipsis="...")
    '0-3,7,... (+2 more)'
    """
    found = ranges.split(",")
    more = len(found) - parts
    if more <= 0:
        return ranges
    dots = palette(sys.stdout.encoding).ellipsis if ellipsis is None else ellipsis
    return f"{','.join(found[:parts])},{dots} (+{more:,} more)"


def bar(count: int, largest: int, *, width: int, palette: Palette = BLOCKS) -> str:
    """Draw `count` as a part of `width` characters that stand for `largest`.

    Whatever is there shows: the bar is empty only for nothing.

    >>> bar(50, 100, width=8), bar(1, 1000, width=8), bar(0, 100, width=8)
    ('████', '▏', '')
    >>> bar(30, 100, width=8, palette=ASCII)
    '##'
    """
    if count <= 0 or largest <= 0:
        return ""
    steps = len(palette.bar)
    whole, part = divmod(max(1, round(min(count, largest) * width * steps / largest)), steps)
    return palette.bar[-1] * whole + (palette.bar[part - 1] if part else "")


def group_of(longest: int, width: int) -> int:
    """Give how many neighbours share a character, so that `longest` fit in `width`.

    >>> group_of(80, 80), group_of(81, 80), group_of(1000, 76), group_of(0, 80)
    (1, 2, 14, 1)
    """
    return max(1, -(-longest // max(1, width)))


def strip(
    sizes: Sequence[int | None], largest: int, *, group: int = 1, palette: Palette = BLOCKS
) -> str:
    """Draw one character for each `group` of neighbours: the shade of its largest.

    A space is nothing, the last shade is `largest`; UNKNOWN is a group of which nothing is
    known.

    >>> strip([0, 1, 50, 100, None], 100)
    ' ▁▄█?'
    >>> strip([0, 1, 50, 100, None], 100, group=2, palette=ASCII)
    '.#?'
    """
    groups = [sizes[start : start + group] for start in range(0, len(sizes), group)]
    return "".join(_shade([s for s in few if s is not None], largest, palette) for few in groups)


def _shade(known: Sequence[int], largest: int, palette: Palette) -> str:
    if not known:
        return UNKNOWN
    most = len(palette.shades) - 1
    # Rounded up: a shade stands for "there is something", however little.
    return palette.shades[min(most, -(-max(known) * most // largest)) if largest > 0 else 0]
