"""Each sub-step of a cutover beside what PostgreSQL and PgBouncer themselves take for it."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from shardctl.moves import clone_cutover, stream_cutover
from tests.bench import moving
from tests.bench.measure import Row, milliseconds, rounds, say

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardctl.moves.sub_step import Cutover
    from tests.bench.measure import Scale
    from tests.bench.moving import Moved, Scripted

MOST = 1.3
"""How long clients may wait, of the sum of the floors."""

_STREAM = (["2-3", "--to", "b", "--method", "stream"], "b", "stream_floor", stream_cutover.CUTOVER)
_CLONE = (
    ["2-3", "--to", "c", "--method", "clone"],
    "c",
    "clone_floor",
    clone_cutover.CUTOVER,
)
_PARTS: Mapping[str, str] = {
    # The stream's floor has no look behind its fence: that goes on while the mark arrives.
    "drain": "arrive", "standbys": "arrive", "snapshot": "arrive",
    "standbys again": "decide",
}  # fmt: skip
_CLONES: Mapping[str, str] = {"drain": "mark", "open": "claim"}


def floors(scale: Scale) -> list[Row]:
    """Move 2 of 8 shards, in turn with the shortest program for each sub-step.

    See `stream_floor.py` and `clone_floor.py` for what these do. No load runs, so that both sides
    have the machine to themselves; `stream-move` and `move` have one. Each move has a new fleet.
    Sub-steps that one program needs and the other does beside another are summed up with that.
    """
    return [
        *_set_against("stream", _STREAM, _PARTS, scale),
        *_set_against("clone", _CLONE, _CLONES, scale),
    ]


def _set_against(
    method: str,
    sides: tuple[list[str], str, str, Cutover],
    parts: Mapping[str, str],
    scale: Scale,
) -> list[Row]:
    words, target, program, table = sides

    def both(number: int) -> tuple[Moved, Scripted]:
        say(f"  {method}, move {number + 1} ({moving.busy()})")

        def ours() -> Moved:
            with moving.sandbox(8, 2, 1) as fleet:
                fleet.settle()
                return fleet.move(*words)

        def floor() -> Scripted:
            with moving.sandbox(8, 2, 1) as fleet:
                fleet.settle()
                return fleet.script(target, 2, 3, name=program)

        if number % 2:
            least = floor()
            return ours(), least
        return ours(), floor()

    done = rounds(scale.of(7, 1), both)
    waiting = {row.name for row in table.between("pause", "route")}
    ours = [
        _summed({n: s for n, s in move.spans.items() if n in waiting}, parts) for move, _ in done
    ]
    least = [_summed(one.spans, parts) for _, one in done]
    rows = [_row(f"  {name}", ours, least, name) for name in least[0]]
    pauses = [move.pause for move, _ in done]
    sums = [sum(one.values()) for one in least]
    ratio = statistics.median(a / b for a, b in zip(pauses, sums, strict=True))
    whole = Row(
        f"{method}: the pause, of the sum of its floors",
        milliseconds(statistics.median(pauses)),
        f"floor {milliseconds(statistics.median(sums))}",
        ratio=ratio,
        spread=_spread(pauses, sums),
        target=f"<= {MOST:g}",
        met=ratio <= MOST,
        note="ours " + ", ".join(milliseconds(pause) for pause in pauses),
    )
    return [whole, *rows]


def _row(
    shown: str,
    ours: Sequence[Mapping[str, float]],
    least: Sequence[Mapping[str, float]],
    name: str,
) -> Row:
    mine, floor = [one.get(name, 0.0) for one in ours], [one[name] for one in least]
    return Row(
        shown,
        milliseconds(statistics.median(mine)),
        f"floor {milliseconds(statistics.median(floor))}",
        ratio=statistics.median(a / b for a, b in zip(mine, floor, strict=True)),
        spread=_spread(mine, floor),
    )


def _spread(ours: Sequence[float], least: Sequence[float]) -> tuple[float, float]:
    ratios = [a / b for a, b in zip(ours, least, strict=True)]
    return min(ratios), max(ratios)


def _summed(spans: Mapping[str, float], parts: Mapping[str, str]) -> dict[str, float]:
    """Sum up sub-steps with those that they are part of.

    >>> _summed({"fence": 2.0, "drain": 1.0, "arrive": 3.0}, {"drain": "arrive"})
    {'fence': 2.0, 'arrive': 4.0}
    """
    found: dict[str, float] = {}
    for name, seconds in spans.items():
        whole = parts.get(name, name)
        found[whole] = found.get(whole, 0.0) + seconds
    return found
