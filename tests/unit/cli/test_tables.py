"""Tables fit the terminal, and nothing of them is cut off."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from shardctl.cli import tables

MOVES = ("move", "state", "from", "to", "shards", "step", "by", "started", "can")
MOVE = (
    "168fce73", "unfinished", "database-1", "database-2", "0-99,200-299,400-499,600-699,800-899",
    "clone\ncopying: 1.2/2.1 GB, 85 MB/s, 11 s left", "operator@bastion.example.com",
    "2026-11-21T13:50:33.310Z", "resume, abort",
)  # fmt: skip


def shown(header: tuple[str, ...], rows: list[tuple[str, ...]], width: int) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(tables.fit(header, rows, width))
    return out.getvalue()


def squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 160])
def test_a_table_is_never_wider_than_the_terminal_and_whole(width: int) -> None:
    text = shown(MOVES, [MOVE, MOVE], width)
    assert max(map(cell_len, text.splitlines())) <= width
    assert "…" not in text
    for word in re.findall(r"[^\s,]+", " ".join(MOVE)):
        assert word in (text if width >= 60 else squeezed(text)), word


@given(
    cells=st.lists(
        st.tuples(*[st.text(st.characters(codec="utf-8", exclude_categories=["C"]))] * 3),
        max_size=4,
    ),
    width=st.integers(12, 120),
)
def test_whatever_is_in_it_fits(cells: list[tuple[str, ...]], width: int) -> None:
    text = shown(("one", "two", "three"), cells, width)
    assert max(map(cell_len, text.splitlines()), default=0) <= width


def test_many_rows_look_as_few_do(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[tuple[str, ...]] = [MOVE, ("1", "done", "a\nb", "é漢", "", "x", "y", "z", "-")] * 2
    for width in (100, 160, 400):
        by_rich = shown(MOVES, rows, width)
        with monkeypatch.context() as patch:
            patch.setattr(tables, "MANY", 3)
            assert shown(MOVES, rows, width) == by_rich


def test_columns_are_left_out_in_their_order_and_numbers_stay_whole() -> None:
    header = ("node", "version", "up", "size", "replication")
    row = ("a", "15.20", "3 d 4 h", "8,647 kB", "slot old: inactive, holds 1,029 MB of WAL")
    for width, gone in ((80, ()), (45, ("up",)), (35, ("up", "version"))):
        out = io.StringIO()
        drops = ("up", "version")
        Console(file=out, width=width).print(tables.fit(header, [row], width, drops=drops))
        text = out.getvalue()
        assert [name for name in header if name not in text] == [*gone][::-1], text
        for name, cell in zip(header[:-1], row, strict=False):
            assert (cell in text) == (name not in gone), text
        assert "1,029 MB" in text
