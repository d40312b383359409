"""Converts times between Unix milliseconds, as in ids, and RFC 3339 in UTC, for people."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_ORIGIN = datetime(1970, 1, 1, tzinfo=UTC)
_YEAR_10000_MS = 253_402_300_800_000
_YEAR_1_MS = -62_135_596_800_000


def render(time_ms: int) -> str:
    """Format Unix milliseconds as RFC 3339 in UTC, with milliseconds.

    A time outside the years 1 to 9999, which RFC 3339 cannot write, becomes `ms:NUMBER`.

    >>> render(1315607284721)
    '2011-09-09T22:28:04.721Z'
    """
    if not _YEAR_1_MS <= time_ms < _YEAR_10000_MS:
        return f"ms:{time_ms}"
    moment = _ORIGIN + timedelta(milliseconds=time_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


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
