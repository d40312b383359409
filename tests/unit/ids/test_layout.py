"""The layout of ids: whatever is encoded is decoded, and ids sort by time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardctl.ids import times
from shardctl.ids.layout import INSTAGRAM_EPOCH_MS, Decoded, IdOutOfRange, Layout
from tests.fixtures.refusals import raises_code

NEGATIVE_BIT = -(1 << 63)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Any split, tick and epoch that is allowed."""
    time = draw(st.integers(1, 62))
    shard = draw(st.integers(1, 63 - time))
    sequence = draw(st.integers(1, 64 - time - shard))
    tick = draw(st.sampled_from([1, 10, 1000, 60_000]) | st.integers(1, 100_000))
    epoch = draw(st.just(INSTAGRAM_EPOCH_MS) | st.integers(-(10**13), 10**13))
    return Layout(epoch, tick, time, shard, sequence)


@st.composite
def parts(draw: st.DrawFn) -> tuple[Layout, int, int, int]:
    """A layout with a time, a shard and a sequence (unbounded) that it can encode."""
    layout = draw(layouts())
    time_ms = draw(st.integers(layout.epoch_ms, layout.last_ms))
    return layout, time_ms, draw(st.integers(0, layout.max_shard)), draw(st.integers(0, 1 << 63))


@given(parts())
def test_the_parts_are_where_the_layout_says(given_parts: tuple[Layout, int, int, int]) -> None:
    layout, time_ms, shard, sequence = given_parts
    bits = f"{layout.encode(time_ms, shard, sequence):0{layout.bits}b}"
    time, rest = bits[: layout.time_bits], bits[layout.time_bits :]
    assert int(time, 2) == (time_ms - layout.epoch_ms) // layout.tick_ms
    assert int(rest[: layout.shard_bits], 2) == shard
    assert int(rest[layout.shard_bits :], 2) == sequence % (1 << layout.sequence_bits)


@given(parts(), st.integers(1, 1 << 70))
def test_a_shard_never_spills_into_the_time(
    given_parts: tuple[Layout, int, int, int], excess: int
) -> None:
    layout, time_ms, shard, sequence = given_parts
    assert (
        layout.decode(layout.encode(time_ms, layout.max_shard, sequence)).time_ms
        == layout.decode(layout.encode(time_ms, 0, 0)).time_ms
    )
    for wrong in (layout.max_shard + excess, -1 - shard):
        with raises_code("shard_out_of_range", match=str(wrong)):
            layout.encode(time_ms, wrong, sequence)


@given(layouts(), st.integers(1, 1 << 70))
def test_times_and_numbers_outside_the_layout_are_refused(layout: Layout, excess: int) -> None:
    for wrong in (layout.epoch_ms - excess, layout.last_ms + excess):
        with raises_code("time_out_of_range") as of_time:
            layout.encode(wrong, 0, 0)
        assert of_time.value.exit_code == 2
    for wrong in (layout.lowest_id - excess, layout.highest_id + excess):
        with pytest.raises(IdOutOfRange, match=str(wrong)) as of_number:
            layout.decode(wrong)
        assert of_number.value.exit_code == 2


def test_the_default_layout_ends_in_june_2046() -> None:
    end = times.parse("2046-06-27T17:00:49.497Z")
    assert Layout().last_ms + 1 == end
    assert Layout().usable_time_bits == 40
    assert Layout().encode(end - 1, 0, 0) == (2**40 - 1) << 23
    with raises_code("time_out_of_range"):
        Layout().encode(end, 0, 0)
    assert Layout().decode(NEGATIVE_BIT) == Decoded(end, 0, 0)
