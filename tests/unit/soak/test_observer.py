"""What is known of moves."""

from __future__ import annotations

import math

from tests.soak.observer import Seen, closed

FIRST, BACK = "5f3a9c1e", "0b6aea6d"


def moves() -> dict[str, Seen]:
    first = Seen("stream", "a", "b", (2, 3), read_only=False)
    first.decided, first.claimed = 10.0, 11.0
    return {FIRST: first}


def test_a_retired_copy_is_closed_by_the_decision_and_an_older_one_by_the_claim() -> None:
    assert closed(moves(), FIRST, "a") == 10.0
    assert closed(moves(), FIRST, "c") == 11.0


def test_of_an_unknown_move_nothing_is_known() -> None:
    assert closed(moves(), BACK, "a") == math.inf


def test_a_reverse_writes_to_a_retired_copy_until_it_is_aborted() -> None:
    back = Seen("stream", "b", "a", (2, 3), read_only=False, reverses=FIRST)
    known = moves() | {BACK: back}
    assert closed(known, FIRST, "a") == math.inf
    back.ended = 20.0
    assert closed(known, FIRST, "a") == 20.0
    assert closed(known, FIRST, "d") == 20.0, "a clone of a, which was made since"
