"""Editing in place: the new value is read, and every other character stays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardctl.topology import marks
from shardctl.topology.edit import ScalarNotEditable, replace_scalars, with_entry

printable = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
styles = st.sampled_from(["{}", "'{}'", '"{}"'])
around = st.text("aé€😀 #", max_size=8)


@given(
    value=printable,
    style=styles,
    comment=around,
    flow=st.booleans(),
    crlf=st.booleans(),
    bom=st.booleans(),
)
def test_whatever_is_written_is_read_back_and_all_else_stays(
    *, value: str, style: str, comment: str, flow: bool, crlf: bool, bom: bool
) -> None:
    old = style.format("0-3")
    if flow:
        head, tail = f"# {comment}\nx: {{é: '{comment}', s: ", f" , t: 1}}  # {comment}\n"
    else:
        head, tail = f"# {comment}\nx:\n  é: '{comment}'\n  s:   ", f"   # {comment}\n\n  t: 1\n"
    head = ("\ufeff" if bom else "") + head
    if crlf:
        head, tail = head.replace("\n", "\r\n"), tail.replace("\n", "\r\n")
    edited = replace_scalars(head + old + tail, {("x", "s"): value})
    assert edited.startswith(head)
    assert edited.endswith(tail)
    written = edited[len(head) : len(edited) - len(tail)]
    assert marks.read(edited.removeprefix("\ufeff")).data["x"]["s"] == value
    assert style == "{}" or written[0] in "'\""


@pytest.mark.parametrize(
    "text",
    [
        "b: 1\n", "a: {b: 1}\n", "a: [1]\n", "a:\n", "a: &x 1\nb: *x\n", "b: &x 1\na: *x\n",
        "a: |\n  1\nb: 2\n", "a: [\n",
    ],
)  # fmt: skip
def test_what_is_no_scalar_of_its_own_is_refused(text: str) -> None:
    with pytest.raises(ScalarNotEditable):
        replace_scalars(text, {("a",): "2"})


NODES = "x: 1\r\nnodes:\r\n  a: {p: 1}  # first\r\n  b:\r\n    p: 2\r\n  # below\r\n\r\ny: 2\r\n"


def test_comments_behind_the_last_entry_stay_where_they_are() -> None:
    its = "  b:\n    p: 2\n    # of b\n"
    text = f"# \u2028# two lines for YAML\nn:\n  a: 1\n{its}\n# All\n# of this\n\n# stays\nm: 1\n"
    assert with_entry(text, "n", "b", None) == text.replace(its, "")
    assert with_entry(text, "n", "c", "3") == text.replace(its, f"{its}  c: 3\n")


def test_an_entry_comes_behind_the_last_and_goes_with_its_lines() -> None:
    more = with_entry(NODES, "nodes", "c", "{p: 3}")
    assert more == NODES.replace("p: 2\r\n", "p: 2\r\n  c: {p: 3}\r\n")
    assert with_entry(more, "nodes", "c", None) == NODES
    assert with_entry(NODES, "nodes", "b", None) == NODES.replace("  b:\r\n    p: 2\r\n", "")
    assert (
        with_entry("\ufeffn:\n - a\nm:\n  a: 1", "m", "b", "2")
        == "\ufeffn:\n - a\nm:\n  a: 1\n  b: 2"
    )
    for text in ("nodes: {a: {p: 1}}\n", "nodes:\n", "y: 1\n"):
        with pytest.raises(ScalarNotEditable):
            with_entry(text, "nodes", "c", "{p: 3}")
