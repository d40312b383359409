"""Streamed moves beside clients at work, set against clones and a quick script in the same run."""

from __future__ import annotations

import math
import statistics
import time
from functools import partial
from typing import TYPE_CHECKING

from shardctl.topology.model import ShardId
from tests.bench import moving
from tests.bench.measure import Row, compare, milliseconds, rounds, say, seconds
from tests.bench.moves import Found, Seen, _medians, _with, _without, at_a_pace, at_rest
from tests.bench.streams import PEAK_MB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.bench.measure import Scale
    from tests.bench.moving import Moved, Sandbox

MEDIAN, WORST = 0.45, 0.7
"""How long clients of a streamed move may wait, of what they wait in a clone's."""
PACED_MS = 25
BEYOND_MS = 50
"""How much longer than the pause a request of the router may take beside a move."""
SCRIPT = 1.3
"""How long the pause may be, of the quick script's."""
MANY_S = 20
"""How long the move of 200 shards with three small tables each may take, all in all."""
SLOWED = 0.8
"""What clients get done while a copy runs, of what they do without."""
FILLED = (ShardId(2), ShardId(3))
_STREAM = ["2-3", "--to", "b", "--method", "stream"]
_CLONE = ["2-3", "--to", "c"]


def move(scale: Scale) -> list[Row]:
    """Move 2 of 8 shards, five times, with 8 clients who never rest: streamed, and by a clone.

    Each move has a new fleet of two nodes; the streamed one goes to the other of them, which
    serves its own shards meanwhile. So does that of a quick script, in turn with both: see
    `tests/bench/stream_script.py` for what it leaves out.
    """
    lasting = scale.of(15, 5)

    def all_three(number: int) -> tuple[Seen, Seen, Seen]:
        streamed, cloned, scripted = Seen(), Seen(), Seen()

        sides = [
            partial(by_shardctl, number, lasting, streamed, _STREAM),
            partial(by_shardctl, number, lasting, cloned, _CLONE),
            partial(by_script, number, lasting, scripted),
        ]
        for side in sides if number % 2 == 0 else reversed(sides):
            side()
        return streamed, cloned, scripted

    done = rounds(scale.of(5, 1), all_three)
    paced = rounds(scale.of(5, 1), partial(at_a_pace, _STREAM, lasting / 3))
    streamed, cloned, scripted = (Seen.of(side) for side in zip(*done, strict=True))
    return [
        *waits("stream 2 of 8 shards", streamed.during, cloned.during, against="a clone"),
        at_rest(paced, most=PACED_MS),
        moving.flaws("streamed moves", [*streamed.during, *paced]),
        compare(
            "  the pause alone",
            [one.pause for one in streamed.moves],
            [one.pause for one in scripted.scripts],
            against="a quick script",
            shown=milliseconds,
            target=SCRIPT,
            note=f"the script's: {_medians(scripted.scripts)}",
        ),
    ]


def beside_a_spare(scale: Scale) -> list[Row]:
    """Move 2 of 8 shards by a stream, five times, with 8 clients of the router who never rest.

    The file has a spare node that is not running; the longest request on a moved shard is set
    against the move's own pause.
    """
    lasting = scale.of(10, 5)

    def once(number: int) -> tuple[Moved, Found]:
        say(f"  move {number + 1} ({moving.busy()})")
        with moving.sandbox(8, 2, 1) as fleet:
            fleet.settle()
            return _with(fleet, _STREAM, lasting, aliases="router")

    done = rounds(scale.of(5, 1), once)
    waits = [found["longest_moved_ms"] for _, found in done]
    held_up = ", ".join(f"{found['held_up_ms']:.0f}" for _, found in done)
    beyond = [wait - one.pause * 1000 for wait, (one, _) in zip(waits, done, strict=True)]
    return [
        moving.limit(
            "router, a spare not running: longest request beyond the pause",
            max(beyond),
            f"{max(beyond):.1f} ms",
            most=BEYOND_MS,
            target=f"<= {BEYOND_MS} ms",
            note=f"{moving.busy()}; longest: {', '.join(f'{wait:.1f}' for wait in waits)}; load "
            f"held up itself: {held_up} ms",
        ),
        moving.flaws("moves", [found for _, found in done]),
    ]


def by_shardctl(number: int, lasting: float, seen: Seen, words: Sequence[str]) -> None:
    """Move in a new fleet with the load."""
    say(f"  move {number + 1}: {words[-1]} ({moving.busy()})")
    with moving.sandbox(8, 2, 1) as fleet:
        fleet.settle()
        seen.add(*_with(fleet, words, lasting))


def by_script(number: int, lasting: float, seen: Seen) -> None:
    """Move to a node that serves, by the quick script, in a new fleet with the load."""
    say(f"  move {number + 1}: by the script ({moving.busy()})")
    with moving.sandbox(8, 2, 1) as fleet:
        fleet.settle()
        with fleet.load() as load:
            seen.scripts.append(fleet.script("b", 2, 3, name="stream_script"))
            load.end(lasting)


def waits(
    name: str, streamed: Sequence[Found], others: Sequence[Found], *, against: str
) -> list[Row]:
    """Set the longest waits on moved shards against those of other moves: median and worst."""
    ours, theirs = _longest(streamed), _longest(others)
    held_up = ", ".join(f"{found['held_up_ms']:.0f}" for found in streamed)
    return [
        compare(
            f"{name}: longest wait",
            [wait / 1000 for wait in ours],
            [wait / 1000 for wait in theirs],
            against=against,
            shown=milliseconds,
            target=MEDIAN,
            note=f"{against}: {', '.join(f'{wait:.1f}' for wait in theirs)}",
        ),
        moving.limit(
            f"  worst, of the worst of {against}",
            max(ours) / max(theirs),
            f"{max(ours):.1f} ms",
            most=WORST,
            target=f"<= {WORST}",
            note=f"{', '.join(f'{wait:.1f}' for wait in ours)}; load held up itself: {held_up} ms",
        ),
    ]


def _longest(founds: Sequence[Found]) -> list[float]:
    """Give the longest wait on moved shards of each load, in milliseconds."""
    return [found["longest_moved_ms"] for found in founds]


def many(scale: Scale) -> list[Row]:
    """Move 200 of 400 shards with 3 small tables each to the other node; the load's is the third.

    No load runs meanwhile: it is what the tables and schemas cost.
    """
    shards = scale.of(400, 16)

    def once(number: int) -> Moved:
        say(f"  {shards} shards, move {number + 1} ({moving.busy()})")
        with moving.sandbox(shards, 2, 0) as fleet:
            _without(fleet, 1, aliases="node")
            fleet.settle()
            return fleet.move(f"0-{shards // 2 - 1}", "--to", "b", "--method", "stream")

    moves = rounds(scale.of(3, 1), once)
    took = [one.took for one in moves]
    steps = [name for name in moves[0].steps if "." not in name]
    shown = (f"{name} {seconds(statistics.median(m.steps[name] for m in moves))}" for name in steps)
    return [
        moving.limit(
            f"stream {shards // 2} of {shards} shards with 3 tables: the whole command",
            statistics.median(took),
            seconds(statistics.median(took)),
            most=MANY_S,
            target=f"<= {MANY_S} s",
            note=", ".join(shown),
        ),
        _peak("  memory of shardctl", moves),
    ]


def slowed(scale: Scale) -> list[Row]:
    """Move 2 shards of some hundred MB with --max-rate 20M, with 8 clients who never rest.

    What these get done each second from the begin of the copy until the cutover, against a load
    of the same length without a move, before or after it by turns.
    """
    rows, rate = scale.of(200_000, 2_000), 20

    def both(number: int) -> tuple[Moved, float, float]:
        say(f"  move {number + 1}, with --max-rate {rate}M ({moving.busy()})")
        with moving.sandbox(8, 2, 0) as fleet:
            fill(fleet, rows)

            def without() -> float:
                fleet.settle()
                return _a_second(_without(fleet, lasting), 1, math.inf)

            lasting = scale.of(15, 5)
            still = [without()] if number % 2 == 0 else []
            fleet.settle()
            with fleet.load() as load:
                began = time.time() - (time.monotonic() - load.began)
                moved = fleet.move(*_STREAM, "--max-rate", f"{rate}M")
                found = load.end(0)
            window = (moved.began["copy"] - began, moved.began["cutover"] - began)
            busy = _a_second(found, *window)
            return moved, busy, still[0] if still else without()

    done = rounds(scale.of(3, 1), both)
    moves, busy, still = zip(*done, strict=True)
    ratios = [one / other for one, other in zip(busy, still, strict=True)]
    ratio = statistics.median(ratios)
    return [
        Row(
            f"stream with --max-rate {rate}M: operations a second",
            f"{statistics.median(busy):,.0f}",
            f"without a move {statistics.median(still):,.0f}",
            ratio=ratio,
            spread=(min(ratios), max(ratios)),
            target=f">= {SLOWED:g}",
            met=ratio >= SLOWED,
            note="the copy took "
            + ", ".join(seconds(one.began["cutover"] - one.began["copy"]) for one in moves),
        ),
        _peak("  memory of shardctl", moves),
    ]


_PHOTOS = """\
INSERT INTO {schema}.photos_by_user (id, user_id, caption, image_url)
SELECT n, n % 1000, '', (SELECT string_agg(md5(n::text || k::text), '')
                         FROM generate_series(1, 30) AS k)
FROM generate_series(1, {rows}) AS n
"""
"""About 1 kB a row, of which no server makes less."""


def fill(fleet: Sandbox, rows: int, shards: Sequence[ShardId] = FILLED) -> None:
    """Put rows into shards: those that move."""
    topology = fleet.topology()
    owners = topology.owners()
    for shard in shards:
        with fleet.connect(owners[shard]) as connection:
            text = _PHOTOS.format(schema=topology.schema(shard), rows=rows)
            connection.execute(text.encode())


def _a_second(found: Found, first: float, last: float) -> float:
    """Give the operations of a load in the median of its whole seconds within some time of it."""
    # Its last second is not a whole one.
    whole = list(enumerate(found["seconds"]))[:-1]
    counted: list[int] = [one["operations"] for n, one in whole if n >= first and n + 1 <= last]
    return statistics.median(counted or [int(one["operations"]) for _, one in whole])


def _peak(name: str, moves: Sequence[Moved]) -> Row:
    peak = max(one.peak_kb for one in moves) / 1024
    return moving.limit(name, peak, f"{peak:.0f} MB", most=PEAK_MB, target=f"<= {PEAK_MB} MB")
