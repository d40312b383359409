"""Subjects of preflight: one file and one row each, whatever they look at."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from shardctl.errors import ShardctlError
from shardctl.moves.preflight import check as preflight
from shardctl.moves.preflight import registry, table
from shardctl.moves.preflight.registry import CLONED
from shardctl.moves.preflight.subject import Context, Place, Subject, Unknown
from tests.fixtures.moves.facts import fit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.moves.refusals import PreflightRefused


def broken(_context: Context) -> int:
    raise ShardctlError("broken", hint="another")


def not_said(context: Context) -> Iterator[PreflightRefused]:
    context.need(broken)
    raise AssertionError
    yield


def looked_at(monkeypatch: pytest.MonkeyPatch, *rows: Subject) -> Context:
    """Look at these subjects alone."""
    monkeypatch.setattr(registry, "of", lambda _: rows)
    facts = fit()
    return preflight.look(Context(facts.topology, facts.plan, "test"))


def test_what_could_not_be_looked_at_is_told_once_and_not_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [
        Subject("heat", "", Place.fleet, broken, not_said, notes=not_said),  # type: ignore[arg-type]  # it gives nothing
        Subject("more", "", Place.fleet, lambda context: context.need(broken), not_said),
    ]
    looked = looked_at(monkeypatch, *rows)
    assert [error.message for error in preflight.judge(looked)] == ["broken"]
    assert list(preflight.notes(looked)) == []
    with pytest.raises(Unknown):
        looked.need(broken)


def test_every_subject_has_a_name_of_its_own_and_is_looked_at_once() -> None:
    names = Counter(one.name for one in CLONED)
    looks = Counter(one.look for one in CLONED if one.look is not None)
    assert set(names.values()) == set(looks.values()) == {1}
    assert all(one.about for one in CLONED)


@pytest.mark.parametrize("one", table.CHECKS, ids=lambda one: one.name)
def test_everything_that_the_table_says_can_be_answered(one: table.Check) -> None:
    assert one.said.keys() <= {"any", "clone", "stream"}
    assert (len(one.asked), one.at) in ((1, "source"), (1, "each"), (2, "both"))
    keys = {key for of_method in one.said.values() for key in of_method}
    if one.at == "both":
        keys = {key.rpartition("_")[0] for key in keys}
    text = "".join(query.as_string(None) for query in one.asked)
    assert {key for key in keys if f"'{key}'" not in text} == set()
