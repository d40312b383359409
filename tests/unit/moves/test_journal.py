"""The journal as values: which copy of a move counts, and what people are told of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardctl.state import journal
from shardctl.state.journal import MoveState
from shardctl.state.ledger import Entry, Ledger
from tests.fixtures.refusals import raises_code
from tests.unit.moved import move


def entry(state: MoveState = MoveState.reserved, holder: str | None = None, **given: Any) -> Entry:
    return Entry(move(state, **given), (), holder)


@given(st.permutations([1, 4, 2, 9, 9]))
def test_the_copy_that_was_changed_most_often_counts(revisions: list[int]) -> None:
    copies = [move(MoveState.promoting, revision=revision) for revision in revisions]
    found = journal.newest(copies)
    assert found is not None
    assert found.revision == 9


@pytest.mark.parametrize("final", [MoveState.done, MoveState.aborted])
def test_a_final_state_anywhere_counts_whatever_was_changed_later(final: MoveState) -> None:
    copies = [move(MoveState.promoting, revision=12), move(final, revision=3)]
    assert journal.newest(copies) is copies[1]
    assert journal.newest(reversed(copies)) is copies[1]


@pytest.mark.parametrize(
    ("state", "holder", "shown", "can"),
    [
        (MoveState.reserved, None, "unfinished", ["resume", "abort"]),
        (MoveState.fenced, "shardctl move-shards by ann@ops1", "running", []),
        (MoveState.promoting, None, "unfinished", ["resume"]),
        (MoveState.unconfirmed, None, "unconfirmed", ["prune"]),
        (MoveState.done, "shardctl prune by ann@ops1", "done", []),
    ],
)
def test_people_are_told_the_state_and_what_they_can_do(
    state: MoveState, holder: str | None, shown: str, can: list[str]
) -> None:
    found = entry(state, holder)
    assert (found.state, found.can()) == (shown, can)


def test_a_move_that_one_node_does_not_know_to_be_over_can_be_resumed() -> None:
    found = Entry(move(MoveState.done), (), None, behind=True)
    assert (found.state, found.can()) == ("unfinished", ["resume"])


@pytest.mark.parametrize("state", [MoveState.done, MoveState.aborted, MoveState.unconfirmed])
def test_a_move_that_has_ended_is_neither_resumed_nor_aborted(state: MoveState) -> None:
    with raises_code("move_ended"):
        entry(state).require_open()


def test_what_is_not_there_is_told_with_what_is() -> None:
    with raises_code("nothing_unfinished"):
        Ledger((entry(MoveState.done),), ()).entry(None)
    with raises_code("move_not_found"):
        Ledger((entry(),), ()).entry("0a")
    with raises_code("no_move_yet"):
        Ledger((), ()).newest()
