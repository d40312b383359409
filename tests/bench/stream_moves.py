"""Streamed moves beside clients at work, set against clones in the same run."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from tests.bench import moving
from tests.bench.measure import Row, compare, milliseconds, rounds, say, seconds
from tests.bench.moves import PACED, Found, Seen, _with

if TYPE_CHECKING:
    from tests.bench.measure import Scale

MEDIAN, WORST = 0.45, 0.7
"""How long clients of a streamed move may wait, of what they wait in a clone's."""
PACED_MS = 25
_STREAM = ["2-3", "--to", "b", "--method", "stream"]
_CLONE = ["2-3", "--to", "c", "--method", "clone"]


def move(scale: Scale) -> list[Row]:
    """Move 2 of 8 shards, five times, with 8 clients who never rest: streamed, and by a clone.

    Each move has a new fleet of two nodes; the streamed one goes to the other of them, which
    serves its own shards meanwhile.
    """
    lasting = scale.of(15, 5)

    def both(number: int) -> tuple[Seen, Seen]:
        streamed, cloned = Seen(), Seen()
        sides = [(streamed, _STREAM), (cloned, _CLONE)]
        for seen, words in sides if number % 2 == 0 else reversed(sides):
            say(f"  move {number + 1}: {words[-1]} ({moving.busy()})")
            with moving.sandbox(8, 2, 1) as fleet:
                fleet.settle()
                seen.add(*_with(fleet, words, lasting))
        return streamed, cloned

    def at_a_pace(number: int) -> Found:
        say(f"  move {number + 1}, with a paced load ({moving.busy()})")
        with moving.sandbox(8, 2, 0) as fleet:
            fleet.settle()
            return _with(fleet, _STREAM, lasting / 3, rate=PACED)[1]

    done = rounds(scale.of(5, 1), both)
    paced = rounds(scale.of(5, 1), at_a_pace)
    streamed, cloned = (Seen.of(side) for side in zip(*done, strict=True))
    ours, theirs = ([one["longest_moved_ms"] for one in s.during] for s in (streamed, cloned))
    rested = [found["longest_moved_ms"] for found in paced]
    return [
        compare(
            "stream 2 of 8 shards: longest wait",
            [wait / 1000 for wait in ours],
            [wait / 1000 for wait in theirs],
            against="a clone",
            shown=milliseconds,
            target=MEDIAN,
            note=f"a clone's: {', '.join(f'{wait:.1f}' for wait in theirs)}",
        ),
        moving.limit(
            "  worst, of the worst of a clone",
            max(ours) / max(theirs),
            f"{max(ours):.1f} ms",
            most=WORST,
            target=f"<= {WORST}",
            note=", ".join(f"{wait:.1f}" for wait in ours),
        ),
        moving.limit(
            f"  with {PACED} operations a second a client: median of {len(rested)}",
            statistics.median(rested),
            f"{statistics.median(rested):.1f} ms",
            most=PACED_MS,
            target=f"<= {PACED_MS} ms",
            note=", ".join(f"{wait:.1f}" for wait in rested),
        ),
        moving.flaws("streamed moves", [*streamed.during, *paced]),
        Row("  the whole command", seconds(statistics.median(m.took for m in streamed.moves)), ""),
        compare(
            "  the pause alone",
            [one.pause for one in streamed.moves],
            [one.pause for one in cloned.moves],
            against="a clone",
            shown=milliseconds,
        ),
        *moving.sub_steps(streamed.moves),
    ]
