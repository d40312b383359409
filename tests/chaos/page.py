"""One page of what a run of chaos found: operations, faults, errors, waits, memory and sessions."""

from __future__ import annotations

import html
from collections import Counter
from typing import TYPE_CHECKING

from tests.chaos.checker import Violation, overlaps
from tests.chaos.faults import UNFELT

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.chaos.history import Operation, Row
    from tests.chaos.run import Run

_OF_MOVES = {("router", "ShardMoved"), ("direct", "42P01"), ("direct", "42501")}
"""What a move gives transactions that were open when it fenced, and whom no pooler holds back."""
_NOTICED_S = 15.0
"""After that, a router has asked every shard once, and so has noticed its move."""
_STYLE = (
    "body{font:16px system-ui;max-width:60em;margin:2em auto;padding:0 1em;color-scheme:light dark}"
    "td,th{padding:.2em .8em;text-align:left}svg{width:100%;height:10em}"
)


def write(
    path: Path, run: Run, operations: Sequence[Operation], rows: Sequence[Row], seed: int
) -> str:
    """Write the page, and give its text for a terminal.

    An error outside all windows of faults is a violation, too; a move itself is a window for those
    that it is documented to give.
    """
    inside: Counter[tuple[str, str]] = Counter()
    outside: Counter[tuple[str, str]] = Counter()
    for one in operations:
        if one.outcome != "acknowledged":
            windows = [(begin, end) for begin, end, name in run.windows if name not in UNFELT]
            if (one.route, one.error) in _OF_MOVES:
                later = _NOTICED_S if one.route == "router" else 0
                windows += [(begin, end + later) for begin, end in run.moving]
            during = overlaps(one, windows)
            (inside if during else outside)[one.route, one.error or ""] += 1
            if not during:
                what = f"{one.client}, shard {one.shard}: {one.error} at {one.begin:.3f}"
                run.found.append(Violation("error_without_a_fault", what))
    longest = Counter[str]()
    for one in operations:
        if one.outcome == "acknowledged":
            longest[one.route] = max(longest[one.route], round((one.end - one.begin) * 1000))
    done = Counter(one.outcome for one in operations)
    faults = Counter(name for *_, name in run.windows)
    violations = Counter(one.code for one in run.found)
    outcomes = ", ".join(f"{n:,} {what}" for what, n in done.most_common())
    lines = [
        f"seed {seed}: {run.moves} moves, {faults.total()} faults",
        f"{len(operations):,} operations ({outcomes}), {len(rows):,} rows",
        f"errors inside windows of faults: {_listed(inside)}",
        f"errors outside of them: {_listed(outside)}",
        f"longest waits, in ms: {_listed(longest)}",
        *(f"left out: {name} ({why})" for name, why in run.left_out.items()),
        f"violations: {_listed(violations) or 'none'}",
        *(f"  {one.code}: {one.what}" for one in run.found[:40]),
    ]
    text = "\n".join([*lines, ""])
    memory = [(at, used) for at, _, used in run.world.samples]
    sessions = [(at, number) for at, number, _ in run.world.samples]
    body = (
        f"<pre>{html.escape(text)}</pre><h2>Faults</h2><table>"
        + "".join(f"<tr><td>{html.escape(k)}<td>{n}" for k, n in sorted(faults.items()))
        + f"</table><h2>Connections of all nodes</h2>{_curve(sessions)}"
        f"<h2>Memory of the poolers, kB</h2>{_curve(memory)}"
    )
    page = f"<!doctype html><meta charset=utf-8><title>chaos</title><style>{_STYLE}</style>"
    path.write_text(f"{page}<h1>Chaos</h1>{body}")
    return text


def _listed(counts: Counter[str] | Counter[tuple[str, str]]) -> str:
    return ", ".join(
        f"{' '.join(key) if isinstance(key, tuple) else key}: {n:,}"
        for key, n in counts.most_common(20)
    )


def _curve(points: Sequence[tuple[float, int]]) -> str:
    """Draw values over time."""
    if not points:
        return "<p>none</p>"
    first, last = points[0][0], points[-1][0] + 1e-9
    most = max(value for _, value in points) or 1
    drawn = " ".join(
        f"{(at - first) / (last - first) * 1000:.1f},{100 - value / most * 100:.1f}"
        for at, value in points
    )
    return (
        f'<svg viewBox="0 0 1000 100" preserveAspectRatio="none"><polyline points="{drawn}" '
        f'fill="none" stroke="currentColor"/></svg><p>at most {most:,}</p>'
    )
