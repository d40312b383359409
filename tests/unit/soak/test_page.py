"""The page of a soak."""

from __future__ import annotations

import json
from dataclasses import replace

from tests.soak.checker import Violation
from tests.soak.history import Era, Op, Pause, line
from tests.soak.page import Findings, flat, render, spark
from tests.soak.soak import Event
from tests.soak.windows import FENCE, Window

FAILED = Op("one", "write", 2, 5, 5.1, "refused", by="p1", code="42P01", message="no table")
MOVE = "move-shards 4 --to b --method stream --yes"


def findings() -> Findings:
    return Findings(
        seed=7,
        seconds=60,
        began=0,
        ended=62,
        disks=True,
        events=[
            Event(1, "operation", MOVE, 1, 4, "0, no fault"),
            Event(2, "operation", MOVE, 5, 8, "3: PauseFailed: a: b, no fault"),
            Event(2, "fault", "kill pooler in cutover", 6, 7, "p1 for 1.0 s"),
            Event(2, "fault", "kill pooler in follow", 6, 7, "nothing there"),
        ],
        moves={"done": 1, "aborted": 1},
        ops=[FAILED, Op("one", "write", 2, 7, 7.4, "acknowledged", by="p1")],
        pauses=[Pause("p1", "shard2", 5, 6.2)],
        windows=[Window("a fence", 4, 6, codes=FENCE)],
        violations=[],
        connections={"a": [(float(n), 20) for n in range(60)]},
        memory={"p1": [(float(n), 5000) for n in range(60)]},
        commands=[(MOVE, 60_000)],
    )


def test_a_run_without_flaws() -> None:
    found = findings()
    page = render(found)
    assert found.ok
    for text in (
        "No violation, and no error outside",
        "| move-shards, stream | 2 | 0: 1, 3: 1 |",
        "Moves: 1 aborted, 1 done.",
        "Faults: 2, of which 1 found nothing to harm.",
        "| kill pooler | 2 | 1 |",
        "- episode 2: move-shards 4 --to b --method stream --yes: 3: PauseFailed: a: b, no fault",
        "| a fence | 42P01 | p1 | 1 |",
        "| p1 | 2 | 0.40 s | 7 s |",
        "Longest pauses that were seen: 1.2 s.",
        "most 4.9 MB, flat",
    ):
        assert text in page


def test_an_error_outside_all_windows_is_shown() -> None:
    found = replace(findings(), windows=[])
    page = render(found)
    assert not found.ok
    assert "**Something is wrong.**" in page
    assert "| **outside** | 42P01 | p1 | 1 |" in page
    assert "- 5.0 s: one, shard 2, write: 42P01 no table" in page


def test_a_violation_is_shown_and_many_are_counted() -> None:
    wrong = [Violation("left behind", f"slot {number}") for number in range(7)]
    page = render(replace(findings(), violations=wrong))
    assert "**Something is wrong.**" in page
    assert "| left behind | 7 |" in page
    assert "- left behind: slot 4" in page
    assert "- left behind: 2 more" in page


def test_a_run_that_ended_early_is_wrong() -> None:
    found = replace(findings(), broken="move 1 is fenced", disks=False)
    assert not found.ok
    assert "It ended early: move 1 is fenced" in render(found)
    assert "no disk was filled" in render(found)


def test_a_picture_shows_the_highest_of_each_stretch() -> None:
    drawn = spark([(0, 1), (0.5, 9), (30, 5), (59, 10)], 0, 60)
    assert (len(drawn), drawn[0], drawn[1], drawn[30], drawn[59]) == (60, "▇", " ", "▄", "█")


def test_memory_is_flat_unless_the_last_third_is_larger() -> None:
    assert flat([(n, 50_000) for n in range(30)])
    assert flat([(n, 5_000 + 100 * n) for n in range(30)])  # a few MB
    assert not flat([(n, 50_000 + 2_000 * n) for n in range(30)])


def test_a_line_of_the_history_has_what_differs_from_the_defaults() -> None:
    assert json.loads(line(FAILED)) == {
        "entry": "Op",
        "client": "one",
        "kind": "write",
        "shard": 2,
        "begin": 5,
        "end": 5.1,
        "outcome": "refused",
        "by": "p1",
        "code": "42P01",
        "message": "no table",
    }
    assert json.loads(line(Era(2, "a"))) == {"entry": "Era", "shard": 2, "node": "a"}
