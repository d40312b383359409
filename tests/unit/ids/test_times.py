"""Times as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardctl.ids import times

FIRST = -62_135_596_800_000  # 0001-01-01
AFTER = 253_402_300_800_000  # 10000-01-01
milliseconds = st.integers(FIRST, AFTER - 1)


@given(milliseconds)
def test_what_is_rendered_is_parsed(time_ms: int) -> None:
    assert times.parse(times.render(time_ms)) == time_ms


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("1970-01-01", 0),
        ("1970-01-01 00:00:00.001", 1),
        ("1969-12-31T19:00-05:00", 0),
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
