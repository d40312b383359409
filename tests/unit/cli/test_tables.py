"""Tables fit the terminal, and nothing of them is cut off."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from shardctl.cli import output


@given(
    cells=st.lists(
        st.tuples(*[st.text(st.characters(codec="utf-8", exclude_categories=["C"]))] * 3),
        max_size=4,
    ),
    width=st.integers(12, 120),
)
def test_whatever_is_in_it_fits(cells: list[tuple[str, ...]], width: int) -> None:
    text = output.fit(("one", "two", "three"), cells, width)
    assert max(map(cell_len, text.splitlines()), default=0) <= width
