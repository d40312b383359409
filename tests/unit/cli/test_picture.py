"""Numbers, bars and strips."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardctl.cli import picture
from shardctl.cli.picture import ASCII, BLOCKS, Palette


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


def test_durations_have_two_units_at_most() -> None:
    seconds = [0, 59.9, 60, 3599, 3600, 86_399, 86_400, 400 * 86_400]
    assert [picture.duration(s) for s in seconds] == [
        *("0s", "59s", "1m 0s", "59m 59s", "1h 0m", "23h 59m", "1d 0h", "400d 0h")
    ]


def test_a_range_list_that_fits_is_left_alone() -> None:
    assert picture.shorten("0-3,7", parts=2, ellipsis="...") == "0-3,7"
    assert picture.shorten("none", parts=2, ellipsis="...") == "none"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "no-such", None])
def test_where_the_encoding_lacks_blocks_the_picture_is_ascii(encoding: str | None) -> None:
    assert picture.palette(encoding) is ASCII


def test_palettes_have_as_many_shades_and_every_character_is_one_column_of_its_encoding() -> None:
    assert len(ASCII.shades) == len(BLOCKS.shades) == 9
    assert len(set(ASCII.shades)) == len(set(BLOCKS.shades)) == 9
    assert f"{ASCII.shades}{ASCII.bar}{ASCII.edge}{ASCII.ellipsis}".isascii()
    assert picture.palette("utf-8") is BLOCKS


@pytest.mark.parametrize("palette", [BLOCKS, ASCII])
def test_shades_grow_with_the_size_and_only_nothing_is_blank(palette: Palette) -> None:
    drawn = picture.strip(range(1001), 1000, palette=palette)
    assert drawn[0] == " "
    assert " " not in drawn[1:]
    assert drawn[-1] == palette.shades[-1]
    assert sorted(drawn, key=palette.shades.index) == list(drawn)


def test_a_group_shows_its_largest_shard() -> None:
    assert picture.strip([0, 0, 0, 80, 0, 0, 10], 80, group=3) == " █▁"


def test_an_unknown_size_hides_no_known_one() -> None:
    assert picture.strip([None, 80, None, None], 80, group=2) == "█?"
    assert picture.strip([None], 0) == "?"


def test_nothing_at_all_is_an_empty_picture() -> None:
    assert picture.strip([], 0) == ""
    assert picture.strip([0, 0], 0) == "  "
    assert picture.bar(0, 0, width=8) == ""


@given(st.lists(st.integers(0, 10**15), max_size=3000), st.integers(1, 300))
def test_a_strip_always_fits_the_width(sizes: list[int], width: int) -> None:
    group = picture.group_of(len(sizes), width)
    drawn = picture.strip(sizes, max(sizes, default=0), group=group)
    assert len(drawn) <= width
    assert len(drawn) == -(-len(sizes) // group)


@given(st.integers(0, 10**15), st.integers(1, 10**15), st.integers(1, 100))
def test_a_bar_is_as_long_as_its_part_of_the_largest(count: int, largest: int, width: int) -> None:
    drawn = picture.bar(count, largest, width=width)
    assert len(drawn) <= width
    assert (drawn == "") == (count == 0)
    if count >= largest:
        assert drawn == "█" * width
    elif count:
        assert abs(len(drawn) - count / largest * width) < 1.1
