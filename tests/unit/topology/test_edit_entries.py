"""Entries that come, go and get other names: the new text is read back, and all else stays."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardctl.topology import marks
from shardctl.topology.edit import ScalarNotEditable
from shardctl.topology.edit_entries import add_entry, remove_entry, rename_entry

ROOT = Path(__file__).parents[3]
EXAMPLE = (ROOT / "topology.yaml").read_bytes().decode()
E = ("nodes", "e")
VALUES = {"host": "127.0.0.1", "port": "6105", "shards": "none"}

names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}", fullmatch=True)
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
comments = st.text("aé€😀 #", max_size=8)

BLOCK = """\
# head
nodes:
  a: {host: h, port: 1, shards: 0-3}  # first

  # of b
  b:
    host: h  # where
    settings:
      work_mem: 1MB   # last

  # behind b

poolers:
  p: {host: h}
"""


@given(
    name=names, host=texts, setting=texts, comment=comments, crlf=st.booleans(), bom=st.booleans()
)
def test_whatever_is_added_is_read_back_and_all_else_stays(
    *, name: str, host: str, setting: str, comment: str, crlf: bool, bom: bool
) -> None:
    text = BLOCK.replace("# last", f"# {comment}")
    text = ("\ufeff" if bom else "") + (text.replace("\n", "\r\n") if crlf else text)
    if name in ("a", "b"):
        return
    values: dict[str, str | dict[str, str]] = {"host": host, "settings": {"x": setting}}
    edited = add_entry(text, ("nodes", name), values)
    assert marks.read(edited.removeprefix("\ufeff")).data["nodes"][name] == values
    assert remove_entry(edited, ("nodes", name)) == text


def test_a_new_node_has_the_line_behind_the_last_and_before_later_comments() -> None:
    line = "  e: {host: 127.0.0.1, port: 6105, shards: none}\n"
    before, behind = BLOCK.split("# last\n")
    assert add_entry(BLOCK, E, VALUES) == f"{before}# last\n{line}{behind}"


def test_the_projects_own_file_gets_a_node_and_loses_it_again() -> None:
    edited = add_entry(EXAMPLE, E, VALUES)
    lines = [line for line in edited.splitlines() if line not in EXAMPLE.splitlines()]
    assert lines == ["  e: {host: 127.0.0.1, port: 6105, shards: none}"]
    assert remove_entry(edited, E) == EXAMPLE


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nodes: {a: {x: 1}}", "nodes: {a: {x: 1}, e: {x: 2}}"),
        ("nodes: {a: {x: 1},}\n", "nodes: {a: {x: 1}, e: {x: 2},}\n"),
        ("nodes:\n  a: {x: 1}", "nodes:\n  a: {x: 1}\n  e: {x: 2}\n"),
        ("nodes:\n  a:\n    x: |\n      1\n", "nodes:\n  a:\n    x: |\n      1\n  e: {x: 2}\n"),
    ],
)
def test_an_entry_is_added_in_whatever_style_the_file_has(text: str, expected: str) -> None:
    assert add_entry(text, E, {"x": "2"}) == expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("nodes:\n  e: {x: 1}\n", "has this key already"),
        ("poolers: {}\n", "has no entries there"),
        ("nodes:\n", "has no entries there"),
        ("nodes: [a]\n", "has no entries there"),
        ("b: &b {a: {x: 1}}\nnodes: *b\n", "is an alias"),
        ("nodes:\n  a: {x: 1}\n a: 2\n", "line 3"),
        ("nodes:\n  a: {x: 1}\n  a: {x: 2}\n", "duplicate key"),
    ],
)
def test_what_cannot_be_added_to_is_refused(text: str, why: str) -> None:
    with pytest.raises(ScalarNotEditable, match=why):
        add_entry(text, E, {"x": "2"})


def test_a_removed_node_takes_its_lines_and_no_other_comment() -> None:
    assert remove_entry(BLOCK, ("nodes", "b")) == BLOCK.replace(
        "  b:\n    host: h  # where\n    settings:\n      work_mem: 1MB   # last\n", ""
    )
    first = "  a: {host: h, port: 1, shards: 0-3}  # first\n"
    assert remove_entry(BLOCK, ("nodes", "a")) == BLOCK.replace(first, "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nodes: {a: 1, e: {x: 2}}", "nodes: {a: 1}"),
        ("nodes: {e: {x: 2}, a: 1}", "nodes: {a: 1}"),
        ("nodes: {a: 1, e: 2, b: 3}", "nodes: {a: 1, b: 3}"),
        ("nodes:\n  a: 1\n  e: 2", "nodes:\n  a: 1\n"),
    ],
)
def test_an_entry_is_removed_in_whatever_style_the_file_has(text: str, expected: str) -> None:
    assert remove_entry(text, E) == expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("nodes:\n  a: 1\n", "does not have this key"),
        ("nodes:\n  e: 1\n", "only entry"),
        ("nodes:\n  e: &e {x: 1}\n  a: *e\n", "alias without an anchor"),
    ],
)
def test_what_cannot_be_removed_is_refused(text: str, why: str) -> None:
    with pytest.raises(ScalarNotEditable, match=why):
        remove_entry(text, E)


@given(new=names)
def test_a_node_gets_another_name_and_all_else_stays(new: str) -> None:
    if new in ("a", "b"):
        return
    edited = rename_entry(BLOCK, ("nodes", "b"), new)
    assert rename_entry(edited, ("nodes", new), "b") == BLOCK
    assert list(marks.read(edited).data["nodes"]) == ["a", new]


def test_a_name_that_is_taken_or_missing_is_refused() -> None:
    with pytest.raises(ScalarNotEditable, match="has this key already"):
        rename_entry(BLOCK, ("nodes", "b"), "a")
    with pytest.raises(ScalarNotEditable, match="does not have this key"):
        rename_entry(BLOCK, ("nodes", "x"), "y")
