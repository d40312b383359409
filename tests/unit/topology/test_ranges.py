"""Range lists: what is written is what is read."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardctl.topology import ranges
from shardctl.topology.ranges import Range

numbers = st.sets(st.integers(0, 300))
spans = st.lists(
    st.builds(lambda a, size: Range(a, a + size), st.integers(0, 300), st.integers(0, 20))
)


def expand(found: tuple[Range, ...]) -> set[int]:
    return {n for first, last in found for n in range(first, last + 1)}


@given(numbers)
def test_what_is_written_is_read_back(chosen: set[int]) -> None:
    assert expand(ranges.parse(ranges.of(chosen))) == chosen


@given(spans)
def test_merge_keeps_every_number_and_leaves_gaps_between_ranges(found: list[Range]) -> None:
    merged = ranges.merge(found)
    assert expand(merged) == expand(tuple(found))
    assert all(a.last + 1 < b.first for a, b in pairwise(merged))


@pytest.mark.parametrize("text", ["", "0,,1", "a", "-1", "0-3-5", "1,none", "7-4", "9" * 5000])
def test_what_is_no_list_of_shards_is_refused_in_short(text: str) -> None:
    with pytest.raises(ValueError, match=r".") as refused:
        ranges.parse(text)
    assert len(str(refused.value)) < 100
