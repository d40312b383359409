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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is not a shard or a range such as 0-3"),
        ("0,,1", "'' is not a shard or a range such as 0-3"),
        ("a", "'a' is not a shard or a range such as 0-3"),
        ("-1", "'-1' is not a shard or a range such as 0-3"),
        ("0-3-5", "'0-3-5' is not a shard or a range such as 0-3"),
        ("1,none", "'none' is not a shard or a range such as 0-3"),
        ("7-4", "7-4 is in the wrong order; write 4-7"),
        ("9" * 5000, f"'{'9' * 40}' is not a shard or a range such as 0-3"),
    ],
)
def test_what_is_no_list_of_shards_is_refused_in_words(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=r"^") as refused:
        ranges.parse(text)
    assert str(refused.value) == message
