"""Numbers as people read them, and sizes as bars."""

from __future__ import annotations

from shardctl import meter

size = meter.size


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


def shorten(ranges: str, *, parts: int = 12) -> str:
    """Keep the first `parts` of a range list, and say how many more there are.

    >>> shorten("0-3,7,9,12-14", parts=2)
    '0-3,7,... (+2 more)'
    """
    found = ranges.split(",")
    more = len(found) - parts
    return ranges if more <= 0 else f"{','.join(found[:parts])},... (+{more:,} more)"


def bar(count: int, largest: int, *, width: int) -> str:
    """Draw `count` as a part of `width` characters that stand for `largest`.

    Whatever is there shows: the bar is empty only for nothing.

    >>> bar(50, 100, width=8), bar(1, 1000, width=8), bar(0, 100, width=8)
    ('####', '#', '')
    """
    if count <= 0 or largest <= 0:
        return ""
    return "#" * max(1, round(min(count, largest) * width / largest))
