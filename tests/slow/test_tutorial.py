"""docs/tutorial.md: its prompts run as they stand there, and its excerpts are the example's."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.fixtures.photos import ROOT

if TYPE_CHECKING:
    from tests.fixtures.photos import Photos

PAGE = (ROOT / "docs/tutorial.md").read_text()


def test_the_prompts_of_the_tutorial_are_true(photos: Photos) -> None:
    blocks = re.findall(r"<!-- tested: tutorial -->\n```pycon\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) > 5
    photos.act("prompts", "".join(blocks))


def test_its_excerpts_are_in_the_files() -> None:
    excerpts = re.findall(r"<!-- from: (\S+) -->\n```\w+\n(.*?)```", PAGE, re.DOTALL)
    assert len(excerpts) > 5
    wrong = [text for name, text in excerpts if text not in (ROOT / name).read_text()]
    assert wrong == []


def test_every_picture_is_there() -> None:
    for name in re.findall(r"!\[[^]]*\]\((\S+)\)", PAGE):
        assert (ROOT / "docs" / name).is_file()
