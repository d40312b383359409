"""Events of several nodes in one trail, and what a clone has of its source's."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardctl.state import lock
from shardctl.state.event_trail import Clone, Event, merged
from shardctl.topology.model import NodeName

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def event(node: str, number: int, minutes: float, command: str = "init") -> Event:
    at = NOON + timedelta(minutes=minutes)
    return Event(at, NodeName(node), number, "ann@ops1", command, "done", ())


def test_events_of_all_nodes_are_in_the_order_of_their_times() -> None:
    events = [event("a", 1, 0), event("a", 2, 10), event("b", 1, 5)]
    assert [(one.node, one.id) for one in merged(events, [])] == [("a", 1), ("b", 1), ("a", 2)]


def test_what_a_clone_has_of_its_sources_is_left_out() -> None:
    events = [event("c", 1, 0), event("a", 1, 0), event("c", 2, 7), event("a", 2, 3)]
    found = merged(events, [Clone("a", "c")])
    assert [(one.node, one.id) for one in found] == [("a", 1), ("a", 2), ("c", 2)]


def test_a_clones_events_stay_where_the_source_has_not_answered() -> None:
    assert merged([event("c", 1, 0)], [Clone("a", "c")]) == [event("c", 1, 0)]


def test_nodes_that_were_cloned_from_each_other_lose_no_event() -> None:
    clones = [Clone("a", "c"), Clone("c", "a")]
    assert len(merged([event("a", 1, 0), event("c", 1, 0)], clones)) == 1


@given(
    st.lists(
        st.builds(event, st.sampled_from("abcd"), st.integers(1, 5), st.integers(0, 3)),
        unique=True,
    ),
    st.lists(st.builds(Clone, st.sampled_from("abcd"), st.sampled_from("abcd"))),
)
def test_no_event_is_lost_and_none_is_shown_twice_for_a_node(
    events: list[Event], clones: list[Clone]
) -> None:
    found = merged(events, clones)
    assert {one.alike for one in found} == {one.alike for one in events}
    assert len(set(found)) == len(found)
    assert found == sorted(found)


@pytest.mark.parametrize(
    ("user", "by_sudo", "named"),
    [
        ("ann", None, "ann@"),
        ("root", "ann", "ann as root@"),
        ("postgres", "ann", "ann as postgres@"),
        ("ann", "ann", "ann@"),
        ("root", "", "root@"),
        ("root", "a\nb\x1b[2J", "ab[2J as root@"),
        ("root", "x" * 100, f"{'x' * 32} as root@"),
    ],
)
def test_the_operator_is_named_with_who_used_sudo(
    monkeypatch: pytest.MonkeyPatch, user: str, by_sudo: str | None, named: str
) -> None:
    monkeypatch.setenv("LOGNAME", user)
    if by_sudo is None:
        monkeypatch.delenv("SUDO_USER", raising=False)
    else:
        monkeypatch.setenv("SUDO_USER", by_sudo)
    assert lock.who().startswith(named)
