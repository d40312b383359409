"""Times as people write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardctl.ids import times

FIRST = -62_135_596_800_000  # 0001-01-01
AFTER = 253_402_300_800_000  # 10000-01-01
milliseconds = st.integers(FIRST, AFTER - 1)
offsets = st.integers(-23 * 60 - 59, 23 * 60 + 59).map(lambda m: timezone(timedelta(minutes=m)))


@given(milliseconds)
def test_what_is_rendered_is_parsed(time_ms: int) -> None:
    assert times.parse(times.render(time_ms)) == time_ms


@given(milliseconds)
def test_rendered_times_have_one_width_and_sort(time_ms: int) -> None:
    text = times.render(time_ms)
    assert len(text) == len("2011-08-24T21:07:01.721Z")
    assert text.endswith("Z")
    if time_ms + 1 < AFTER:
        assert text < times.render(time_ms + 1)


@given(st.datetimes())
def test_a_time_without_a_zone_is_utc(moment: datetime) -> None:
    assert times.parse(moment.isoformat()) == times.parse(f"{moment.isoformat()}Z")


@given(st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1), timezones=offsets))  # noqa: DTZ001  # hypothesis wants bounds without zones
def test_offsets_are_taken_into_account(moment: datetime) -> None:
    utc = moment.astimezone(UTC).replace(tzinfo=None)
    assert times.parse(moment.isoformat()) == times.parse(utc.isoformat())


@given(milliseconds, st.integers(0, 999))
def test_microseconds_are_rounded_down(time_ms: int, microseconds: int) -> None:
    text = times.render(time_ms).replace("Z", f"{microseconds:03d}Z")
    assert times.parse(text) == time_ms


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01", 0),
        ("1970-01-01 00:00:00.001", 1),
        ("1970-01-01T02:00:00+02:00", 0),
        ("1969-12-31T19:00-05:00", 0),
        ("1969-12-31T23:59:59.9999Z", -1),
        ("1969-12-31T23:59:59.999999999Z", -1),
        ("20110824T210701.721Z", 1_314_220_021_721),
    ],
)
def test_the_common_ways_to_write_a_time(text: str, time_ms: int) -> None:
    assert times.parse(text) == time_ms


@pytest.mark.parametrize(
    "text", ["", "now", "yesterday", "2011-13-01", "2011-02-30", "1315607284721x", "10000-01-01"]
)
def test_what_is_no_time_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        times.parse(text)


@pytest.mark.parametrize("time_ms", [AFTER, FIRST - 1, 10**18, -(10**18), 1 << 80])
def test_a_time_that_rfc_3339_cannot_write_is_a_number(time_ms: int) -> None:
    assert times.render(time_ms) == f"ms:{time_ms}"


def test_the_edges_of_what_rfc_3339_can_write() -> None:
    assert times.render(AFTER - 1) == "9999-12-31T23:59:59.999Z"
    assert times.render(FIRST) == "0001-01-01T00:00:00.000Z"
    assert times.parse("0001-01-01T00:00:00+01:00") == FIRST - 3_600_000
