"""The table of transitions: what it promises, and that all SQL which writes a state is in it."""

from __future__ import annotations

import re
from importlib import resources
from typing import TYPE_CHECKING, Any

import pytest

from shardctl.state import journal
from shardctl.state.journal import TRANSITIONS, Actor, MoveState, leading_to

if TYPE_CHECKING:
    from collections.abc import Iterator

_UPDATE = re.compile(r"UPDATE shardctl\.move\b.*?(?=;|\Z)", re.DOTALL)
_TO = re.compile(r"\bSET state = '(\w+)'")
_FROM = re.compile(r"(?<!SET )\bstate (?:IN \(([^()]*)\)|= '(\w+)')")
_BY_ADVANCE = {
    ("claimed", "routed"),
    ("routed", "done"),
    ("routed", "unconfirmed"),
    ("unconfirmed", "done"),
    ("reserved", "aborted"),
    ("undone", "aborted"),
}
"""What shardctl writes through `journal.advance` alone, which looks into the table itself."""
_COPIES = {"claiming"}
"""Statements that bring a record to what its source says, as `journal.copy` does."""
_OTHERS = {"set_state", "note", "note_reverse", "watch", "follow"}
"""Statements that write no state of their own: `advance` checks the first."""


def sources() -> list[str]:
    """Give the texts of all files of shardctl that may hold SQL."""
    kinds = (".py", ".sql", ".j2", ".sh")
    root = resources.files("shardctl")
    return [f.read_text() for f in _below(root) if f.name.endswith(kinds)]


def _below(folder: Any) -> Iterator[Any]:
    for one in folder.iterdir():
        yield from _below(one) if one.is_dir() else [one]


def updates() -> Iterator[tuple[str, str, str]]:
    """Give each UPDATE of shardctl.move: its block's name, what stands before it, itself."""
    for text in sources():
        for block in re.split(r"(?m)^(?=-- name: )", text):
            name = block.removeprefix("-- name: ").partition("\n")[0]
            for found in _UPDATE.finditer(block):
                yield name, block[: found.start()], found[0]


def written() -> set[tuple[str, str]]:
    """Give all pairs of states between which SQL changes a move."""
    pairs = set()
    for name, before, statement in updates():
        to = _TO.search(statement)
        if to is None:
            assert name in _OTHERS | _COPIES, f"{name}: which state does it write?"
            continue
        # Its own condition, or that of the SELECT ... FOR UPDATE before it.
        conditions = _FROM.findall(statement) or _FROM.findall(before)[-1:]
        states = {s for several, one in conditions for s in re.findall(r"\w+", several or one)}
        assert states, f"{name}: from which states?"
        pairs |= {(state, to[1]) for state in states}
    return pairs


def test_the_table_has_what_sql_writes_and_what_advance_is_asked_for() -> None:
    table = [(t.before.value, t.after.value) for t in TRANSITIONS]
    assert len(table) == len(set(table))
    assert written() & _BY_ADVANCE == set()
    assert set(table) == written() | _BY_ADVANCE


def test_the_source_guard_does_what_the_sql_of_its_session_does() -> None:
    by_guard = {(t.before, t.after) for t in TRANSITIONS if Actor.source_guard in t.who}
    assert by_guard == {(s, MoveState.undone) for s in MoveState if s.undoable}


def test_changed_moves_with_the_state_alone_and_the_revision_with_everything() -> None:
    for name, _, statement in updates():
        raised = re.search(r"\brevision = revision \+", statement)
        assert raised or (name in _COPIES and "AND revision < " in statement), name
        states = re.search(r"\bSET state = ", statement) is not None
        assert states == (re.search(r"\bchanged = (pg_catalog\.)?clock_", statement) is not None), (
            name
        )


def test_only_the_decision_ends_what_the_source_owns() -> None:
    onward = [t for t in TRANSITIONS if t.before.undoable and not t.after.undoable]
    assert {(t.before, t.after) for t in onward if t.after is not MoveState.aborted} == {
        (MoveState.drained, MoveState.promoting),
        (MoveState.drained, MoveState.claimed),  # in the target's own record, on a primary
    }
    assert leading_to(MoveState.aborted) == (MoveState.reserved, MoveState.undone)
    assert [t for t in TRANSITIONS if t.after.undoable and not t.before.undoable] == []


def test_what_the_target_owns_it_keeps() -> None:
    owned = {s for s in MoveState if s.claimed_by_target}
    assert {t.after for t in TRANSITIONS if t.before in owned} <= owned


def test_advance_refuses_what_is_not_in_the_table_before_it_writes() -> None:
    session: Any = None  # it is not even asked
    with pytest.raises(AssertionError, match="routed"):
        journal.advance(session, "5f3a9c1e", [MoveState.routed], MoveState.undone)
