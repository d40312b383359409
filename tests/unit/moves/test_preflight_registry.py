"""Subjects of preflight: one file and one row each, whatever they look at."""

from __future__ import annotations

from collections import Counter

import pytest

from shardctl.moves.preflight import table
from shardctl.moves.preflight.registry import of_kind
from shardctl.moves.preflight.subject import Kind


@pytest.mark.parametrize("kind", Kind)
def test_every_subject_has_a_name_of_its_own_and_is_looked_at_once(kind: Kind) -> None:
    subjects = of_kind(kind)
    names = Counter(one.name for one in subjects)
    looks = Counter(one.look for one in subjects if one.look is not None)
    assert set(names.values()) == set(looks.values()) == {1}
    assert all(one.about for one in subjects)


@pytest.mark.parametrize("one", table.CHECKS, ids=lambda one: one.name)
def test_everything_that_the_table_says_can_be_answered(one: table.Check) -> None:
    assert one.said.keys() <= {"any", "clone", "stream"}
    assert (len(one.asked), one.at) in ((1, "source"), (1, "target"), (1, "each"), (2, "both"))
    keys = {key for of_method in one.said.values() for key in of_method}
    if one.at == "both":
        keys = {key.rpartition("_")[0] for key in keys}
    text = "".join(query.as_string(None) for query in one.asked)
    assert {key for key in keys if f"'{key}'" not in text} == set()
