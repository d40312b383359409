"""The windows of operations."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.soak import allowed
from tests.soak.history import Op
from tests.soak.observer import Seen
from tests.soak.schedule import Episode
from tests.soak.windows import outside

EPISODE = Episode(1, "clone", 0.5, 0.5, (), (), "resume")


@pytest.mark.parametrize(
    ("operation", "words", "by", "code", "may"),
    [
        ("clone", (), "p1", "42P01", False),
        ("clone", (), "direct", "42P01", True),
        ("stream", (), "p1 by nodes", "3F000", True),
        ("stream", (), "router", "42P01", False),
        ("stream", ("--terminate",), "p2", "57P01", True),
        ("reverse", (), "direct", "42P01", True),
        ("reverse", (), "p1", "42P01", False),
        ("reverse", ("--terminate",), "p2", "57P01", True),
        ("stream", (), "p2", "57P01", False),
        ("clone", ("--read-only",), "p2", "25006", True),
        ("clone", (), "p2", "25006", False),
        ("read-only", (), "p1", "25006", True),
        ("read-only", (), "p1", "42P01", False),
        ("repack", (), "direct", "42P01", False),
    ],
)
def test_an_operation_allows_what_its_page_does(
    operation: str, words: tuple[str, ...], by: str, code: str, may: bool
) -> None:
    episode = replace(EPISODE, operation=operation, words=words)
    windows = list(allowed.of_operation(episode, [2, 3], 10, 20))
    op = Op("one", "write", 2, 15, 15.1, "refused", by=by, code=code)
    assert (outside([op], windows) == []) is may
    assert outside([replace(op, shard=4)], windows)
    assert outside([replace(op, begin=21, end=22)], windows)


def seen(method: str = "clone", claimed: float = 12.0) -> dict[str, Seen]:
    made = Seen(method, "a", "c", (2, 3), read_only=False)
    made.undoable, made.claimed, made.routed = 11.9, claimed, claimed + 0.1
    return {"1": made}


@pytest.mark.parametrize(
    ("moves", "disturbed", "may"),
    [
        (seen(), {"1"}, True),
        (seen(), set(), False),
        (seen(claimed=16), set(), True),  # the promotion outlasted the guards
        (seen("stream"), {"1"}, False),
        (seen(claimed=float("inf")), {"1"}, False),
    ],
)
def test_a_disturbed_clone_leaves_its_shards_unserved_for_a_while(
    moves: dict[str, Seen], disturbed: set[str], may: bool
) -> None:
    op = Op("one", "write", 2, 11.95, 12, "refused", by="p1", code="42P01")
    windows = list(allowed.of_clones(moves, disturbed))
    assert (outside([op], windows) == []) is may
    assert outside([replace(op, begin=5, end=6), replace(op, code="08006")], windows)
