"""The sub-steps of a move's cutover as bars, each beside what was predicted for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.cli import picture
from shardctl.cli.options import Report
from shardctl.cli.output import console, print_json, print_table
from shardctl.moves import prediction
from shardctl.moves.prediction import AFTER, BEFORE, WAITING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardctl.moves.prediction import Times
    from shardctl.state.ledger import Entry
    from shardctl.topology.model import Topology

HEADER = ("sub-step", "ms", "predicted", "")
_TITLES = {
    BEFORE: "before clients wait",
    WAITING: "while clients wait",
    AFTER: "afterwards",
}
_NARROW, _WIDE = 12, 40
_OTHERS = 30
"""What the figures and the gaps between columns take at most."""


def show(topology: Topology, entry: Entry, output: Report) -> None:
    """Print the timeline of a move; JSON is that of `moves show`, with it."""
    found = prediction.sub_step_times(topology, entry.move)
    if output is Report.json:
        timeline = [one.as_json() for one in found]
        shown = {**entry.as_json(), **entry.details()}
        print_json({"format": 1, **shown, "timeline": timeline})
        return
    print(f"move {entry.move.id}: {entry.state}, method {entry.move.method}")
    names = max(len(one.name) for one in found)
    width = max(_NARROW, min(_WIDE, console().width - names - _OTHERS))
    for when, title in _TITLES.items():
        if group := [one for one in found if one.when == when]:
            print(f"\n{title}: {_sum(group)}")
            print_table(HEADER, rows(group, width=width))
    print("# took; | predicted")


def rows(group: Sequence[Times], *, width: int) -> list[tuple[str, ...]]:
    """Give a row for each sub-step; its bars are drawn to the scale of the longest of the group."""
    longest = max(max(one.took_ms or 0.0, one.predicted_ms or 0.0) for one in group)
    return [
        (
            one.name,
            _ms(one.took_ms),
            _ms(one.predicted_ms),
            bar(one.took_ms or 0.0, one.predicted_ms, longest, width=width),
        )
        for one in group
    ]


def bar(took: float, predicted: float | None, longest: float, *, width: int) -> str:
    """Draw what a sub-step took, with an edge where its prediction ends.

    >>> bar(5, 10, 10, width=8), bar(10, 5, 10, width=8), bar(5, None, 10, width=8)
    ('####   |', '###|####', '####')
    """
    drawn = picture.bar(round(took * 10), round(longest * 10), width=width)
    if not predicted or not longest:
        return drawn
    at = max(0, min(width, round(predicted * width / longest)) - 1)
    padded = drawn.ljust(at + 1)
    return f"{padded[:at]}|{padded[at + 1 :]}"


def _sum(group: Sequence[Times]) -> str:
    """Sum up a group.

    >>> from shardctl.moves.prediction import Times
    >>> _sum([Times("pause", "waiting", 2.0, 3.0), Times("fence", "waiting", 4.0, None)])
    '6.0 ms (predicted: 3.0 ms)'
    >>> _sum([Times("pause", "waiting", None, 3.0)]), _sum([Times("serve", "after", None, None)])
    ('predicted: 3.0 ms', 'not measured')
    """
    took = [one.took_ms for one in group if one.took_ms is not None]
    expected = [one.predicted_ms for one in group if one.predicted_ms is not None]
    said = f"predicted: {sum(expected):,.1f} ms" if expected else ""
    if not took:
        return said or "not measured"
    return f"{sum(took):,.1f} ms" + (f" ({said})" if said else "")


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"
