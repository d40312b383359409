"""Subjects of preflight: one file and one row each, whatever they look at."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from shardctl.errors import Problems, ShardctlError
from shardctl.moves.preflight import check as preflight
from shardctl.moves.preflight import table
from shardctl.moves.preflight.registry import SUBJECTS
from shardctl.moves.preflight.subject import Context, Place, Subject, Unknown
from shardctl.moves.refusals import PreflightRefused
from tests.fixtures.moves.facts import fit

if TYPE_CHECKING:
    from collections.abc import Iterator


def temperature(_context: Context) -> int:
    return 41


def broken(_context: Context) -> int:
    raise ShardctlError("the thermometer is broken", hint="get another")


def too_hot(context: Context) -> Iterator[PreflightRefused]:
    if context.need(temperature) > 40:
        yield PreflightRefused("the room", "hot", "it is too hot", hint="open a window")


def not_said(context: Context) -> Iterator[PreflightRefused]:
    context.need(broken)
    raise AssertionError
    yield


def context() -> Context:
    facts = fit()
    return Context(facts.topology, facts.plan, "test")


def test_a_new_subject_is_a_look_a_judgement_and_a_row() -> None:
    one = Subject("heat", "the room is not too hot", Place.fleet, temperature, too_hot)
    looked = preflight.look(context(), [one])
    assert looked.of(temperature) == 41
    assert [str(error) for error in preflight.judge(looked, [one])] == ["the room: it is too hot"]


def test_what_could_not_be_looked_at_is_told_once_and_not_judged() -> None:
    rows = [
        Subject("heat", "", Place.fleet, broken, not_said, notes=not_said),  # type: ignore[arg-type]  # it gives nothing
        Subject("more", "", Place.fleet, lambda context: context.need(broken), not_said),
    ]
    looked = preflight.look(context(), rows)
    assert [error.message for error in preflight.judge(looked, rows)] == [
        "the thermometer is broken"
    ]
    assert list(preflight.notes(looked, rows)) == []
    with pytest.raises(Unknown):
        looked.need(broken)


def test_a_subject_that_was_left_out_in_silence_is_a_bug() -> None:
    facts = fit()
    rows = [Subject("heat", "", Place.fleet, judge=too_hot)]  # nothing looks at the temperature
    with pytest.raises(AssertionError, match="heat"):
        preflight.check(facts.topology, facts.plan, purpose="test", subjects=rows)


def test_errors_of_the_target_s_host_say_whose_they_are() -> None:
    def several(_context: Context) -> None:
        raise Problems([ShardctlError("node c: itself"), ShardctlError("a disk")])

    rows = [Subject("a", "", Place.fleet, broken), Subject("b", "", Place.target, several)]
    looked = preflight.look(context(), rows)
    told = {error.message for error in preflight.judge(looked, rows)}
    assert told == {"the thermometer is broken", "node c: itself", "node c: a disk"}


def test_every_subject_has_a_name_of_its_own_and_is_looked_at_once() -> None:
    names = Counter(one.name for one in SUBJECTS)
    looks = Counter(one.look for one in SUBJECTS if one.look is not None)
    assert set(names.values()) == set(looks.values()) == {1}
    assert all(one.about for one in SUBJECTS)


@pytest.mark.parametrize("one", table.CHECKS, ids=lambda one: one.name)
def test_everything_that_the_table_says_can_be_answered(one: table.Check) -> None:
    assert one.said.keys() <= {"any", "clone", "stream"}
    assert (len(one.asked), one.at) in ((1, "source"), (1, "each"), (2, "both"))
    keys = {key for of_method in one.said.values() for key in of_method}
    if one.at == "both":
        keys = {key.rpartition("_")[0] for key in keys}
    text = "".join(query.as_string(None) for query in one.asked)
    assert {key for key in keys if f"'{key}'" not in text} == set()
