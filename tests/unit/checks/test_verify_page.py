"""docs/verify.md and the registry are in step: sections, sentences, codes and severities."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from shardctl.checks.structure import RELATIONS
from shardctl.checks.verify import CHECKS
from tests import reference

if TYPE_CHECKING:
    from collections.abc import Iterator


def rows() -> Iterator[list[str]]:
    """Give the cells of all tables of codes."""
    for line in reference.VERIFY.read_text(encoding="utf-8").splitlines():
        if line.startswith("| `") and line.count("|") > 4:
            yield [cell.strip() for cell in line.strip("|").split("|")]


def test_the_page_is_as_the_rules_have_it_and_every_row_says_all() -> None:
    assert reference.VERIFY.read_text(encoding="utf-8") == reference.render_verify()
    assert all(len(cells) == 4 and all(cells) for cells in rows())
    assert len(list(rows())) == 1 + sum(len(check.rules.of) for check in CHECKS.values())


def test_every_kind_of_thing_in_a_structure_has_rules() -> None:
    sql = (reference.REFERENCE.parents[1] / "shardctl/checks/structure.sql").read_text("utf-8")
    kinds = set(re.findall(r"'([a-z]+)',\s+(?:\w\.)?relname\b", sql)) | RELATIONS
    rules = CHECKS["structure"].rules.of
    assert {code.rpartition("_")[0] for code in rules if code.endswith("_differs")} == kinds
