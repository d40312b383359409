"""Converts times between Unix milliseconds, as in ids, and RFC 3339 in UTC, for people."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache

DAY_MS = 86_400_000

_ORIGIN = datetime(1970, 1, 1, tzinfo=UTC)


def render(time_ms: int) -> str:
    """Format Unix milliseconds as RFC 3339 in UTC, with milliseconds.

    A time outside the years 1 to 9999, which RFC 3339 cannot write, becomes `ms:NUMBER`.

    >>> render(1315607284721)
    '2011-09-09T22:28:04.721Z'
    """
    day, rest = divmod(time_ms, DAY_MS)
    try:
        return f"{date_text(day)}T{time_text(rest // 1000)}.{rest % 1000:03d}Z"
    except OverflowError:
        return f"ms:{time_ms}"


@cache  # of millions of ids, as the text of a second is
def date_text(day: int) -> str:
    """Write a day, counted from 1970; raises OverflowError outside the years 1 to 9999."""
    return (_ORIGIN + timedelta(days=day)).date().isoformat()


@cache
def time_text(second: int) -> str:
    """Write a second of a day."""
    return f"{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"


def parse(text: str) -> int:
    """Parse an ISO 8601 time into Unix milliseconds, rounded down; UTC without a zone.

    Raises ValueError.

    >>> parse("2011-09-09T22:28:04.721Z"), parse("2011-09-09")
    (1315607284721, 1315526400000)
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _ORIGIN) // timedelta(milliseconds=1)
