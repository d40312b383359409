"""Clones that hand over by stream, set against those that are promoted in the cutover."""

from __future__ import annotations

import statistics
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from tests.bench import moves, moving, stream_moves
from tests.bench.measure import Row, compare, milliseconds, rounds, say, seconds
from tests.bench.moves import PACED, Found, Seen, _with

if TYPE_CHECKING:
    from tests.bench.measure import Scale
    from tests.bench.moving import Moved

WHOLE = 1.3
"""How long the whole command may take, of that of a clone that is promoted in the cutover."""
PACED_MS = 30
STAYING = 1.5
"""How long clients of shards that stay may wait, of what they wait without a move."""
SCRIPT = 1.3
"""How long clients may wait, of what they wait in the streamed quick script."""
_STREAM = ("--method", "clone", "--handover", "stream")
_MOVE = ("2-3", "--to", "c")


def move(scale: Scale) -> list[Row]:
    """Move 2 of 8 shards, five times, with 8 clients who never rest, by both handovers in turn.

    Each move has a new fleet of two nodes, and clones one of them. So does a move by the quick
    script of `stream-move`, to the other of them, and a move with clients at a pace. On shards
    that stay the longest wait is set against that of a load of the same length without a move.
    """
    lasting = scale.of(15, 5)

    def all_three(number: int) -> tuple[Seen, Seen, Seen]:
        streamed, promoted, scripted = Seen(), Seen(), Seen()
        sides = [
            partial(moves.ours, number, lasting, streamed, [*_MOVE, *_STREAM]),
            partial(
                stream_moves.by_shardctl, number, lasting, promoted, [*_MOVE, *moving.PROMOTED]
            ),
            partial(stream_moves.by_script, number, lasting, scripted),
        ]
        for side in sides if number % 2 == 0 else reversed(sides):
            side()
        return streamed, promoted, scripted

    def at_a_pace(number: int) -> Found:
        say(f"  move {number + 1}, with a paced load ({moving.busy()})")
        with moving.sandbox(8, 2, 1) as fleet:
            fleet.settle()
            return _with(fleet, [*_MOVE, *_STREAM], lasting / 3, rate=PACED)[1]

    done = rounds(scale.of(5, 1), all_three)
    paced = rounds(scale.of(5, 1), at_a_pace)
    streamed, promoted, scripted = (Seen.of(side) for side in zip(*done, strict=True))
    return [
        *stream_moves.waits(
            "clone, handover stream", streamed.during, promoted.during, against="handover promote"
        ),
        stream_moves.of_script(streamed.during, scripted.scripted, target=SCRIPT),
        stream_moves.at_rest(paced, most=PACED_MS),
        moving.flaws("moves with handover stream", [*streamed.during, *paced]),
        replace(moving.flaws("handover promote", promoted.during), target="-", met=None),
        moves.staying(streamed, target=STAYING),
        compare(
            "  the pause alone",
            [one.pause for one in streamed.moves],
            [one.pause for one in promoted.moves],
            against="handover promote",
            shown=milliseconds,
        ),
        compare(
            "  the whole command",
            [one.took for one in streamed.moves],
            [one.took for one in promoted.moves],
            against="handover promote",
            shown=seconds,
            target=WHOLE,
            note=", ".join(
                f"{name} {seconds(statistics.median(m.steps[name] for m in streamed.moves))}"
                for name in streamed.moves[0].steps
                if "." not in name
            ),
        ),
        *moving.sub_steps(streamed.moves),
    ]


def many(scale: Scale) -> list[Row]:
    """Move 500 of 1,000 shards, and 1,000 of 2,048, with 3 tables each, beside clients.

    As in `move-many`: clients go through `node` aliases, and the third table is their own.
    """
    return [
        *_of_many(scale, shards=1_000, moved=500, most=180, times=5),
        *_of_many(scale, shards=2_048, moved=1_000, most=400, times=3),
    ]


def _of_many(scale: Scale, *, shards: int, moved: int, most: float, times: int) -> list[Row]:
    count, leaving = scale.of(shards, 20), scale.of(moved, 10)

    def once(number: int) -> tuple[Moved, Found]:
        say(f"  {count} shards, move {number + 1} ({moving.busy()})")
        with moving.sandbox(count, 1, 1, aliases=["node"]) as fleet:
            return _with(
                fleet, [f"0-{leaving - 1}", "--to", "b", *_STREAM], scale.of(15, 5), aliases="node"
            )

    done, during = zip(*rounds(scale.of(times, 1), once), strict=True)
    pauses = [one.pause * 1000 for one in done]
    waits = [found["longest_moved_ms"] for found in during]
    return [
        moving.limit(
            f"clone {leaving:,} of {count:,} shards, handover stream: pause, worst of "
            f"{len(pauses)}",
            max(pauses),
            f"{max(pauses):.0f} ms",
            most=most,
            target=f"<= {most:g} ms",
            note=f"{', '.join(f'{pause:.0f}' for pause in pauses)}; longest wait on moved shards "
            f"{', '.join(f'{wait:.0f}' for wait in waits)}",
        ),
        moving.flaws("moves", during),
        *moving.sub_steps(done),
    ]
