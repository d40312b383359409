"""What is printed of a move's clients and of its comparison."""

from __future__ import annotations

from typing import Any

import pytest

from shardctl.cli import moves_report

COMPARED = {"proof": "compared", "tables": 1, "rows": 2_000}


@pytest.mark.parametrize(
    ("report", "lines"),
    [
        (
            {"pause_ms": 96.4, "predicted_pause_ms": 71.2, "pooler_waits_ms": {"p": 0.0, "q": 93}},
            ["clients waited at most 96 ms (predicted: 71 ms)"],
        ),
        (
            {"pause_ms": 96.4, "predicted_pause_ms": 71.2, "pooler_waits_ms": {"p": 0.0, "q": 0.0}},
            ["pause 96 ms (predicted: 71 ms); no client waited"],
        ),
        ({"pause_ms": 20.0, "pooler_waits_ms": {}}, ["clients waited at most 20 ms"]),
        (COMPARED, ["compared: 1 table, 2,000 rows"]),
        ({"differing": ["shard2.photos"]}, ["differs: shard2.photos"]),
        ({}, []),
    ],
)
def test_a_report_tells_who_waited_and_what_was_compared(
    report: dict[str, Any], lines: list[str]
) -> None:
    assert list(moves_report._result(report)) == lines
