"""Many ids to lines: the fast way gives what the plain way gives."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardctl.ids import times
from shardctl.ids.decoding import Decoder
from shardctl.ids.layout import Layout
from tests.unit.ids.test_layout import layouts

if TYPE_CHECKING:
    from collections.abc import Iterable

    Parsed = list[tuple[int, str, int, int]]

KNOWN = 11637205501278089


def run(
    texts: Iterable[str], *, layout: Layout | None = None, output: str = "tsv"
) -> tuple[str, dict[int, str]]:
    """Decode lines numbered from 1; give the output and the complaints by line."""
    complaints: dict[int, str] = {}
    decoder = Decoder(layout or Layout(), output, None)
    out = decoder.decode(enumerate(texts, 1), complaints.__setitem__)
    assert decoder.bad == len(complaints)
    assert decoder.good == out.count("\n")
    return out, complaints


def parsed(out: str, output: str = "tsv") -> Parsed:
    if output == "json":
        rows = [json.loads(line).values() for line in out.splitlines()]
        assert all(isinstance(number, str) for number, *_ in rows)
    else:
        rows = [line.split("\t" if output == "tsv" else None) for line in out.splitlines()]
    return [(int(i), time, int(shard), int(rest)) for i, time, shard, rest in rows]


@pytest.mark.parametrize("output", ["table", "tsv", "json"])
@given(layout=layouts(), data=st.data())
def test_lines_say_what_the_layout_says(output: str, layout: Layout, data: st.DataObject) -> None:
    numbers = data.draw(st.lists(st.integers(layout.lowest_id, layout.highest_id), max_size=20))
    out, complaints = run(map(str, numbers), layout=layout, output=output)
    wanted, too_far = [], []
    for position, number in enumerate(numbers, 1):
        time_ms, shard, sequence = layout.decode(number)
        time = times.render(time_ms)
        if time.startswith("ms:"):
            too_far.append(position)
        else:
            wanted.append((number, time, shard, sequence))
    assert parsed(out, output) == wanted
    assert list(complaints) == too_far


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_hex_is_the_bigint_with_these_bits(number: int) -> None:
    plain, _ = run([str(number)])
    for text in (f"0x{number & (1 << 64) - 1:x}", f" 0X{number & (1 << 64) - 1:X}\n"):
        assert run([text]) == (plain, {})


@pytest.mark.parametrize("text", ["-" + "9" * 5000, "0x" + "f" * 5000, "9" * 100])
def test_a_number_of_any_length_is_a_complaint_and_a_short_one(text: str) -> None:
    out, complaints = run([text, str(KNOWN)])
    assert [row[0] for row in parsed(out)] == [KNOWN]
    assert list(complaints) == [1]
    assert len(complaints[1]) < 150


@pytest.mark.parametrize("epoch", [253_402_300_800_000 - 1000, -62_135_596_801_000])
def test_a_time_that_cannot_be_written_is_refused_and_its_neighbour_is_not(epoch: int) -> None:
    layout = Layout(epoch_ms=epoch)
    inside, outside = (999, 1000) if epoch > 0 else (1000, 999)
    ids = [tick << 23 for tick in (outside, inside, outside)]
    out, complaints = run(map(str, ids), layout=layout)
    assert [row[0] for row in parsed(out)] == [inside << 23]
    assert list(complaints) == [1, 3]
