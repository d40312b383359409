"""Many ids to lines: the fast way gives what the plain way gives."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardctl.ids import times
from shardctl.ids.decoding import Decoder, Place
from shardctl.ids.layout import Layout
from tests.unit.ids.test_layout import SMALL, layouts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    Parsed = list[tuple[int, str, int, int, str, str]]

OUTPUTS = ["table", "tsv", "json"]
ENDS = {
    "table": "  -       -\n",
    "tsv": "\t\t\n",
    "csv": ",,\n",
    "json": ',"schema":null,"node":null}\n',
}
KNOWN = 11637205501278089
NAMES = st.text(st.sampled_from("ab'\"%$s\\{}é"), min_size=1, max_size=12)


def run(
    texts: Iterable[str],
    *,
    layout: Layout | None = None,
    output: str = "tsv",
    places: Mapping[int, Place] | None = None,
) -> tuple[str, dict[int, str]]:
    """Decode lines numbered from 1; give the output and the complaints by line."""
    texts = list(texts)
    complaints: dict[int, str] = {}
    decoder = Decoder(layout or Layout(), output, places)
    out = decoder.decode(enumerate(texts, 1), complaints.__setitem__)
    assert decoder.bad == len(complaints)
    assert decoder.good == out.count("\n")
    return out, complaints


def from_tsv(out: str) -> Parsed:
    rows = [line.split("\t") for line in out.splitlines()]
    return [(int(i), time, int(s), int(q), *_both(rest)) for i, time, s, q, *rest in rows]


def from_json(out: str) -> Parsed:
    rows = [json.loads(line) for line in out.splitlines()]
    assert all(isinstance(row["id"], str) for row in rows)
    return [
        (int(r["id"]), r["time"], r["shard"], r["sequence"], r.get("schema", ""), r.get("node", ""))
        for r in rows
    ]


def from_table(out: str) -> Parsed:
    rows = [line.split() for line in out.splitlines()]
    return [(int(i), time, int(s), int(q), *_both(rest)) for i, time, s, q, *rest in rows]


def _both(rest: list[str]) -> tuple[str, str]:
    if not rest:
        return "", ""
    schema, node = rest
    return schema, node


PARSERS: dict[str, Callable[[str], Parsed]] = {
    "table": from_table,
    "tsv": from_tsv,
    "json": from_json,
}


@pytest.mark.parametrize("output", OUTPUTS)
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
            wanted.append((number, time, shard, sequence, "", ""))
    assert PARSERS[output](out) == wanted
    assert list(complaints) == too_far


@pytest.mark.parametrize("output", OUTPUTS)
@given(
    numbers=st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=20),
    names=st.lists(st.tuples(NAMES, NAMES), min_size=1, max_size=8),
)
def test_lines_end_with_the_place_whatever_its_name(
    output: str, numbers: list[int], names: list[tuple[str, str]]
) -> None:
    layout = Layout(time_bits=48, shard_bits=3, sequence_bits=13, epoch_ms=0)
    places = {shard: Place(*name) for shard, name in enumerate(names)}
    out, _ = run(map(str, numbers), layout=layout, output=output, places=places)
    wanted = [
        (n, times.render(d.time_ms), d.shard, d.sequence, *places[d.shard])
        for n in numbers
        for d in [layout.decode(n)]
        if d.shard in places
    ]
    placed = [row for row in PARSERS[output](out) if row[2] in places]
    assert placed == [row for row in wanted if not row[1].startswith("ms:")]


def test_a_bad_line_is_named_by_its_number_and_the_others_are_decoded() -> None:
    texts = [str(KNOWN), "x", "", "  \n", "1e5", f" {KNOWN}\n", "1.0", str(1 << 63), "0x", "-", "é"]
    out, complaints = run(texts)
    assert [row[0] for row in from_tsv(out)] == [KNOWN, KNOWN]
    assert list(complaints) == [2, 5, 7, 8, 9, 10, 11]
    assert complaints[2] == "'x' is not a number"
    assert "ids of this layout are -9223372036854775808 to 9223372036854775807" in complaints[8]


def test_numbers_of_lines_are_the_callers() -> None:
    heard: list[tuple[int, str]] = []
    decoder = Decoder(Layout(), "tsv", None)
    for first in (1, 1001):
        decoder.decode([(first, "1"), (first + 1, "bad")], lambda *c: heard.append(c))
    assert [number for number, _ in heard] == [2, 1002]
    assert (decoder.good, decoder.bad) == (2, 2)


@pytest.mark.parametrize("text", ["1_000", "_1", "1_", "0x1_0", "0x_1", " 1_0\n"])
def test_underscores_are_refused(text: str) -> None:
    assert run([text]) == ("", {1: f"{text.strip()!r} is not a number"})


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_hex_is_the_bigint_with_these_bits(number: int) -> None:
    plain, _ = run([str(number)])
    for text in (f"0x{number & (1 << 64) - 1:x}", f" 0X{number & (1 << 64) - 1:X}\n"):
        assert run([text]) == (plain, {})


@pytest.mark.parametrize("text", ["0xg", "-0x1", "0x-1", "0x+1", "0x 1", "ff", "x1"])
def test_what_looks_like_hex_and_is_not_is_refused(text: str) -> None:
    assert run([text]) == ("", {1: f"{text!r} is not a number"})


@pytest.mark.parametrize(
    "text", ["9" * 5000, "-" + "9" * 5000, "0x" + "f" * 5000, "0" * 5000 + "x", "9" * 100]
)
def test_a_number_of_any_length_is_a_complaint_and_a_short_one(text: str) -> None:
    out, complaints = run([text, str(KNOWN)])
    assert [row[0] for row in from_tsv(out)] == [KNOWN]
    assert list(complaints) == [1]
    assert len(complaints[1]) < 150


def test_ids_of_other_widths_are_refused() -> None:
    out, complaints = run(["-1", str(1 << 32), "4294967295", "0xffffffff", "0"], layout=SMALL)
    assert [row[0] for row in from_tsv(out)] == [4294967295, 4294967295, 0]
    assert [why.split(":")[1].strip() for why in complaints.values()] == [
        "ids of this layout are 0 to 4294967295"
    ] * 2


@pytest.mark.parametrize(("output", "end"), ENDS.items())
def test_a_shard_that_is_not_in_the_topology_has_no_place(output: str, end: str) -> None:
    decoder = Decoder(Layout(), output, {1: Place("shard1", "a")})
    out = decoder.decode([(1, str(KNOWN))], lambda _, reason: pytest.fail(reason))
    assert "1341" in out
    assert out.endswith(end)
    assert decoder.unplaced == {1341}


@pytest.mark.parametrize("epoch", [253_402_300_800_000 - 1000, -62_135_596_801_000])
def test_a_time_that_cannot_be_written_is_refused_and_its_neighbour_is_not(epoch: int) -> None:
    layout = Layout(epoch_ms=epoch)
    inside, outside = (999, 1000) if epoch > 0 else (1000, 999)
    ids = [tick << 23 for tick in (outside, inside, outside)]
    out, complaints = run(map(str, ids), layout=layout)
    assert [row[0] for row in from_tsv(out)] == [inside << 23]
    assert list(complaints) == [1, 3]
    assert complaints[1].startswith(f"the time of {ids[0]} is ")


@given(st.lists(st.sampled_from(["5", "x", "", "0x7", str(KNOWN)]), max_size=30), st.integers(1, 5))
def test_blocks_give_what_one_block_gives(texts: list[str], size: int) -> None:
    whole, complaints = run(texts)
    decoder = Decoder(Layout(), "tsv", None)
    heard: dict[int, str] = {}
    numbered = list(enumerate(texts, 1))
    blocks = [numbered[at : at + size] for at in range(0, len(numbered), size)]
    assert "".join(decoder.decode(block, heard.__setitem__) for block in blocks) == whole
    assert heard == complaints


def test_the_table_has_fixed_columns_under_its_header() -> None:
    places = {0: Place("shard0", "a"), 1341: Place("a_long_name_of_a_schema", "node_b")}
    decoder = Decoder(Layout(), "table", places)
    lines = decoder.decode([(1, "5"), (2, str(KNOWN))], lambda *_: None).splitlines()
    header = decoder.header.rstrip("\n")
    assert header.split() == ["id", "time", "shard", "sequence", "schema", "node"]
    assert {line.index("2011") for line in lines} == {header.index("time")}
    assert [line[header.index("node") :] for line in lines] == ["a", "node_b"]
    assert [line[header.index("schema") :].split()[0] for line in lines] == [
        "shard0",
        "a_long_name_of_a_schema",
    ]
    assert {line[: header.index("sequence") + 8][-3:] for line in lines} == {"  5", "905"}


@pytest.mark.parametrize("output", ["tsv", "json"])
def test_only_the_table_has_a_header(output: str) -> None:
    assert Decoder(Layout(), output, {0: Place("shard0", "a")}).header == ""
