"""Numbers, sizes and paces as people read them at a glance, and sizes as bars."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from shardctl import meter
from shardctl.meter import BYTES, Held, Reading

if TYPE_CHECKING:
    from shardctl.state.progress import MoveProgress


size, duration = meter.size, meter.duration


def number(count: int | None) -> str:
    """Write a count, or that it is not known."""
    return "-" if count is None else f"{count:,}"


def shorten(ranges: str, *, parts: int = 12) -> str:
    """Keep the first `parts` of a range list, and say how many more there are.

    >>> shorten("0-3,7,9,12-14", parts=2)
    '0-3,7,... (+2 more)'
    """
    found = ranges.split(",")
    more = len(found) - parts
    return ranges if more <= 0 else f"{','.join(found[:parts])},... (+{more:,} more)"


def bar(count: float, largest: float, *, width: int) -> str:
    """Draw `count` as a part of `width` characters that stand for `largest`.

    Whatever is there shows: the bar is empty only for nothing.

    >>> bar(50, 100, width=8), bar(1, 1000, width=8), bar(0, 100, width=8)
    ('####', '#', '')
    """
    if count <= 0 or largest <= 0:
        return ""
    return "#" * max(1, round(min(count, largest) * width / largest))


def moment(time: datetime) -> str:
    """Write a time to the second, in UTC."""
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


_FRESH_S = 5.0
"""Figures of a copy that are older are no longer those of this moment."""


def amount(done: int, total: int, unit: str = BYTES) -> str:
    """Write what is done, and the total where it is known.

    >>> amount(1_286_243_840, 2_247_206_912), amount(5_000_000, 0)
    ('1,227 MB of 2,143 MB', '4,883 kB')
    >>> amount(500, 2000, "shards"), amount(500, 0, "rows"), amount(3, 8, "")
    ('500/2,000 shards', '500 rows', '3/8')
    """
    if unit == BYTES:
        return f"{size(done)} of {size(total)}" if total else size(done)
    return f"{done:,}/{total:,} {unit}".strip() if total else f"{done:,} {unit}".strip()


def rate(per_s: float, unit: str = BYTES) -> str:
    """Write a rate; what takes longer than a second is counted by the minute.

    >>> rate(88_902_477), rate(320.4, "shards"), rate(0.25, "tables")
    ('85 MB/s', '320/s', '15.0/min')
    """
    if unit == BYTES:
        return f"{size(round(per_s))}/s"
    return f"{per_s:,.0f}/s" if per_s >= 1 else f"{per_s * 60:.1f}/min"


def _pace(reading: Reading) -> str:
    """Say what the work waits for, or how fast it is and what is left."""
    if reading.ended:
        return "done" if reading.done >= reading.total else "stopped"
    if reading.waits is not None and reading.waits_s is not None:
        return f"waits {duration(reading.waits_s)} for {reading.waits}"
    if reading.rate and reading.unit:  # what counts steps of different kinds has no pace
        shown = rate(reading.rate, reading.unit)
        if reading.eta_s is None:
            return shown
        return f"{shown}, {duration(reading.eta_s)} left"
    return f"for {duration(reading.elapsed_s)}" if reading.elapsed_s >= 1 else ""


def line(key: str, reading: Reading) -> str:
    """Say in one line how far the work of `key` is, and how it goes on."""
    return ", ".join([f"{key}: {reading.phase}", *_far(reading)])


def _far(reading: Reading) -> list[str]:
    counted = reading.total or reading.done
    parts = [amount(reading.done, reading.total, reading.unit)] if counted else []
    parts += [pace] if (pace := _pace(reading)) else []
    return parts + ([] if reading.held is None or reading.ended else held(reading.held))


def held(wal: Held) -> list[str]:
    """Say how far behind a target is, and how much WAL its source keeps for it.

    >>> held(Held(bytes=3 << 30, limit=20 << 30, lag=5_000_000))
    ['lag 4,883 kB', 'source keeps 3,072 MB of 20 GB of WAL']
    >>> held(Held(bytes=1000, limit=None))
    ['source keeps 1,000 bytes of WAL']
    """
    parts = [] if wal.lag is None else [f"lag {amount(wal.lag, 0)}"]
    parts.append(f"source keeps {amount(wal.bytes, wal.limit or 0)} of WAL")
    return parts


def copied(progress: MoveProgress, now: datetime) -> str:
    """Say how far the copy of a move was when that was last written, and when if long ago."""
    amounts = progress.bytes or progress.total_bytes
    parts = [amount(progress.bytes, progress.total_bytes or 0)] if amounts else []
    parts += [rate(progress.bytes_per_s)] if progress.bytes_per_s else []
    parts += [f"{duration(progress.eta_s)} left"] if progress.eta_s is not None else []
    if progress.wal_bytes is not None:
        parts += held(Held(progress.wal_bytes, progress.wal_limit_bytes, progress.lag_bytes))
    age = (now - progress.at).total_seconds()
    if age > _FRESH_S:
        parts.append(f"as of {duration(age)} ago")
    return f"{progress.phase}: {', '.join(parts)}" if parts else progress.phase
