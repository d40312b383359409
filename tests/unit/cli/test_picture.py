"""Numbers and bars."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardctl.cli import picture


@pytest.mark.parametrize(
    ("count", "told"),
    [
        (0, "0 bytes"),
        (10_239, "10,239 bytes"),
        (10_240, "10 kB"),
        (10_239 * 1024, "10,239 kB"),
        (10_240 * 1024, "10 MB"),
        (10_240 * 1024**2, "10 GB"),
        (10_240 * 1024**3, "10 TB"),
        (10_240 * 1024**4, "10 PB"),
        (10_240 * 1024**5, "10,240 PB"),
        (None, "-"),
    ],
)
def test_sizes_are_written_as_pg_size_pretty_does(count: int | None, told: str) -> None:
    assert picture.size(count) == told


@pytest.mark.parametrize(
    ("count", "told"),
    [(9_949, "9,949"), (99_500, "100 k"), (999_499, "999 k"), (999_500, "1.0 M"), (10**13, "10 T")],
)
def test_counts_are_shortened_to_three_digits(count: int, told: str) -> None:
    assert picture.number(count) == told


def test_a_range_list_that_fits_is_left_alone() -> None:
    assert picture.shorten("0-3,7", parts=2) == "0-3,7"
    assert picture.shorten("none", parts=2) == "none"


@given(st.integers(0, 10**15), st.integers(1, 10**15), st.integers(1, 100))
def test_a_bar_is_as_long_as_its_part_of_the_largest(count: int, largest: int, width: int) -> None:
    drawn = picture.bar(count, largest, width=width)
    assert len(drawn) <= width
    assert (drawn == "") == (count == 0)
    if count >= largest:
        assert drawn == "#" * width
    elif count:
        assert abs(len(drawn) - count / largest * width) < 1.1
