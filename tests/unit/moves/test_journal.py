"""The journal as values: which copy of a move counts, and what people are told of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardctl.moves.ledger import Ledger
from shardctl.state import journal
from shardctl.state.journal import Move, MoveState, StepRecord
from shardctl.state.ledger import Entry
from tests.fixtures.refusals import raises_code

BEGAN = datetime(2026, 3, 1, 12, tzinfo=UTC)
UNDOABLE = {MoveState.reserved, MoveState.undone, MoveState.fenced, MoveState.drained}


def move(state: MoveState = MoveState.reserved, **given: Any) -> Move:
    values: dict[str, Any] = {
        "id": "5f3a9c1e",
        "revision": 1,
        "state": state,
        "method": "clone",
        "source": "a",
        "target": "c",
        "shards": [2, 3],
        "schemas": ["shard2", "shard3"],
        "retired": ["shard2__retired_5f3a9c1e", "shard3__retired_5f3a9c1e"],
        "plan": {},
        "who": "ann@ops1",
        "started": BEGAN,
        "changed": BEGAN,
        "ended": None,
        "drained_at": None,
        "drained_to": None,
        "proof": None,
        "report": None,
    }
    return Move(**values | given)


def step(name: str, at_s: float, **given: Any) -> StepRecord:
    values: dict[str, Any] = {"state": "done", "took_ms": 5.04, "error": None} | given
    return StepRecord(step=name, started=BEGAN + timedelta(seconds=at_s), **values)


def entry(state: MoveState = MoveState.reserved, holder: str | None = None, **given: Any) -> Entry:
    return Entry(move(state, **given), (), holder)


@pytest.mark.parametrize("state", MoveState)
def test_only_the_source_can_have_its_shards_back_up_to_the_drain(state: MoveState) -> None:
    assert state.undoable == (state in UNDOABLE)


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
        (MoveState.undone, None, "unfinished", ["resume", "abort"]),
        (MoveState.fenced, "shardctl move-shards by ann@ops1", "running", []),
        (MoveState.promoting, None, "unfinished", ["resume"]),
        (MoveState.claimed, "shardctl move-shards by ann@ops1", "running", []),
        (MoveState.routed, None, "unfinished", ["resume"]),
        (MoveState.unconfirmed, None, "unconfirmed", ["prune"]),
        (MoveState.done, "shardctl prune by ann@ops1", "done", []),
        (MoveState.aborted, None, "aborted", []),
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


def test_a_move_has_the_shape_of_the_contract() -> None:
    steps = (step("reserve", 0), step("cutover", 3))
    found = Entry(move(MoveState.promoting), steps, None)
    assert found.as_json() == {
        "id": "5f3a9c1e",
        "state": "unfinished",
        "method": "clone",
        "source": "a",
        "target": "c",
        "shards": [2, 3],
        "step": "cutover.promoting",
        "by": "ann@ops1",
        "started": "2026-03-01T12:00:00.000Z",
        "ended": None,
        "can": ["resume"],
        "reverse": None,
    }


def test_the_unfinished_move_is_meant_where_none_is_named() -> None:
    done, going = entry(MoveState.done, id="00000001"), entry(id="00000002")
    ledger = Ledger((done, going), ())
    assert ledger.entry(None) is going
    assert ledger.entry("00000001") is done
    assert ledger.newest() is done


def test_what_is_not_there_is_told_with_what_is() -> None:
    with raises_code("nothing_unfinished"):
        Ledger((entry(MoveState.done),), ()).entry(None)
    with raises_code("move_not_found") as caught:
        Ledger((entry(),), ()).entry("0a")
    assert "5f3a9c1e" in caught.value.hint
    with raises_code("no_move_yet"):
        Ledger((), ()).newest()
