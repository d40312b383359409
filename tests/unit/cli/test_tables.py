"""Tables fit the terminal, and nothing of them is cut off."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from shardctl.cli import tables

if TYPE_CHECKING:
    import pytest

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
