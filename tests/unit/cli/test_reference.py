"""The documentation: the commands' reference is up to date, and links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shardctl.state.journal import MoveState
from tests import man_page, reference

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[3]
DOCUMENTS = sorted({ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")})


def lines_of_prose(file: Path) -> list[str]:
    """Give a document's lines, without blocks of code and with code spans emptied."""
    text = re.sub(r"(?ms)^( *)(```|~~~).*?^\1\2$", "", file.read_text(encoding="utf-8"))
    return text.splitlines()


def links(file: Path) -> list[str]:
    """List where a document's links lead, but for those to other machines."""
    found: list[str] = []
    for line in lines_of_prose(file):
        found += re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "``", line))
        found += re.findall(r"^\[[^\]]+\]: (\S+)", line)
    return [link for link in found if not re.match(r"[a-z][a-z0-9+.-]*:", link)]


def anchors(file: Path) -> set[str]:
    """List the anchors that a document's headings get."""
    titles = (line.lstrip("#") for line in lines_of_prose(file) if re.match(r"#{1,6} ", line))
    kept = (re.sub(r"[^\w\- ]", "", title.strip().lower()) for title in titles)
    return {title.replace(" ", "-") for title in kept}


@pytest.mark.parametrize(
    ("file", "render"),
    [
        (reference.FILE, reference.render),
        (reference.MOVES, reference.render_moves),
        (man_page.FILE, man_page.render),
    ],
    ids=lambda of: getattr(of, "name", ""),
)
def test_what_is_generated_is_up_to_date(file: Path, render: Callable[[], str]) -> None:
    assert file.read_text(encoding="utf-8") == render(), f"{file} is out of date: run `make docs`"


def test_every_state_of_a_move_is_told() -> None:
    assert set(reference.STATES) == set(MoveState)


def test_every_command_option_and_argument_has_help() -> None:
    for entry in reference.entries():
        parts = (entry.command, *entry.options, *entry.arguments)
        assert all(part.help for part in parts), entry.name


def test_every_link_leads_to_a_file_and_a_heading_of_it() -> None:
    for file, link in ((one, link) for one in DOCUMENTS for link in links(one)):
        path, _, anchor = link.partition("#")
        target = (file.parent / path).resolve() if path else file
        assert target.exists(), f"{file.relative_to(ROOT)} links to {link}, which is not there"
        assert target.is_relative_to(ROOT), f"{link} leads out of the project"
        if anchor:
            assert anchor in anchors(target), f"{link}: there is no such heading"


def test_every_document_but_the_readme_is_linked_from_another() -> None:
    linked = {
        (file.parent / link.partition("#")[0]).resolve()
        for file in DOCUMENTS
        for link in links(file)
    }
    assert {str(f.relative_to(ROOT)) for f in DOCUMENTS if f not in linked} <= {"README.md"}


def test_the_site_lists_every_page() -> None:
    listed = set(re.findall(r": (docs/\S+\.md)\n", (ROOT / "docs/mkdocs.yml").read_text()))
    pages = {str(f.relative_to(ROOT)) for f in DOCUMENTS if f.is_relative_to(ROOT / "docs")}
    assert {page for page in pages if not page.startswith("docs/adr/")} == listed
