"""The help of every command, in terminals of any width."""

from __future__ import annotations

import re

import pytest
from rich.cells import cell_len

from tests import reference
from tests.fixtures.commands import here


@pytest.mark.parametrize("width", [60, 80])
def test_no_name_of_an_option_is_cut_off(width: int) -> None:
    for entry in reference.entries():
        words = entry.name.split()[1:]
        shown = here(*words, "--help", COLUMNS=str(width)).stdout
        named = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*(?![\w…-])", shown))
        options = {name for option in entry.options for name in option.opts}
        assert options <= named, (entry.name, options - named)
        text, _, _ = shown.partition("Examples:")
        assert max(map(cell_len, text.splitlines())) <= width
        assert "…" not in text
        assert "...\n" not in text.partition("\n\n")[2]  # below what shows the usage
