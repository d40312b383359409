"""The documentation: the commands' reference is up to date, and links lead somewhere."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from shardctl.state.states import MoveState
from tests import man_page, reference

GROFF = shutil.which("groff")
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


def test_the_reference_is_what_the_commands_say() -> None:
    assert reference.FILE.read_text(encoding="utf-8") == reference.render(), (
        "docs/reference/commands.md is out of date: run `make docs`"
    )


def test_the_reference_of_moves_is_what_steps_and_states_say() -> None:
    assert reference.MOVES.read_text(encoding="utf-8") == reference.render_moves(), (
        "docs/reference/moves.md is out of date: run `make docs`"
    )


def test_the_man_page_is_what_the_commands_say() -> None:
    assert man_page.FILE.read_text(encoding="utf-8") == man_page.render(), (
        "docs/reference/shardctl.1 is out of date: run `make docs`"
    )


@pytest.mark.skipif(GROFF is None, reason="groff is not installed: apt-get install groff-base")
def test_the_man_page_is_right_for_groff() -> None:
    done = subprocess.run(
        [str(GROFF), "-man", "-ww", "-K", "utf8", "-T", "utf8", man_page.FILE],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert not done.stderr
    shown = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)
    for entry in reference.entries():
        assert entry.name in shown


def test_every_state_of_a_move_is_told() -> None:
    assert set(reference.STATES) == set(MoveState)


def test_the_reference_of_preflight_is_what_its_registry_says() -> None:
    assert reference.PREFLIGHT.read_text(encoding="utf-8") == reference.render_preflight(), (
        "docs/reference/preflight.md is out of date: run `make docs`"
    )


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
