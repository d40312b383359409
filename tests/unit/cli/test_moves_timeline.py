"""The bars of a cutover's sub-steps."""

from __future__ import annotations

import pytest

from shardctl.cli import moves_timeline
from shardctl.moves.prediction import Times

GROUP = [
    Times("pause", "waiting", 6.0, 3.0),
    Times("fence", "waiting", 3.0, 6.0),
    Times("drain", "waiting", 0.0, None),
    Times("decide", "waiting", None, 12.0),
]


def test_a_bar_is_what_a_sub_step_took_and_an_edge_is_what_was_predicted() -> None:
    rows = moves_timeline.rows(GROUP, width=12)
    assert rows == [
        ("pause", "6.0", "3.0", "##|###"),
        ("fence", "3.0", "6.0", "###  |"),
        ("drain", "0.0", "-", ""),
        ("decide", "-", "12.0", "           |"),
    ]


@pytest.mark.parametrize("took", [0.0, 0.04, 1.0, 99.0])
@pytest.mark.parametrize("predicted", [None, 0.0, 0.04, 1.0, 99.0])
def test_no_bar_is_wider_than_its_column(took: float, predicted: float | None) -> None:
    longest = max(took, predicted or 0.0)
    drawn = moves_timeline.bar(took, predicted, longest, width=18)
    assert len(drawn) <= 18
    assert ("|" in drawn) == bool(predicted)
