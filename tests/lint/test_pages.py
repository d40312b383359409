"""Operator English: README.md and docs have no word of the list in tests/lint/language.py.

Only prose is searched: what a program prints or a person types is quoted in blocks and spans of
code. One case a page, so that each can be run alone: `-k poolers`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.lint.language import ROOT, found_in

if TYPE_CHECKING:
    from pathlib import Path

LEFT_OUT = {
    "docs/adr/": "a decision keeps the words of its time",
    "docs/reference/commands.md": "written from help texts, which are searched in the code",
    "docs/reference/errors.md": "written from messages and docstrings of the code",
    "docs/reference/moves.md": "written from the steps' sentences in the code",
}
"""Pages and folders that are not searched -> the reason."""

QUOTED = (
    r"(?ms)^( *)(```|~~~).*?^\1\2$",  # a block of code
    r"`[^`\n]*`",
    r"(?<=\])\([^)\s]*\)",  # where a link leads
    r"(?s)<!--.*?-->",
)
"""What is no prose of a page."""


def prose(page: Path) -> str:
    """Give a page's text with what is quoted blanked, line by line as it was."""
    text = page.read_text(encoding="utf-8")
    for pattern in QUOTED:
        text = re.sub(pattern, lambda quoted: "``" + "\n" * quoted[0].count("\n"), text)
    return text


def pages() -> list[str]:
    """List the searched pages by their paths from the project's root."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    names = [page.relative_to(ROOT).as_posix() for page in found]
    return [name for name in names if not name.startswith(tuple(LEFT_OUT))]


@pytest.mark.parametrize("page", pages())
def test_a_page_is_operator_english(page: str) -> None:
    assert [str(found) for found in found_in(prose(ROOT / page))] == []


def test_what_is_left_out_exists() -> None:
    assert [name for name in LEFT_OUT if not (ROOT / name).exists()] == []


def test_only_prose_is_searched(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "`mend` it\n<!-- mend\nit -->\n[link](mend.md)\n\n- item:\n\n"
        "  ```console\n  $ mend\n  ```\n\nmend it\n"
    )
    assert [(one.line, one.words) for one in found_in(prose(page))] == [(12, "mend")]
