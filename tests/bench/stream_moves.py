"""Streamed moves with many tables, beside a slow copy, and beside a router with a spare node."""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from shardctl.topology.model import ShardId
from tests.bench import moving
from tests.bench.measure import Row, compare, in_turn, limit, rounds, say, seconds
from tests.bench.moves import STREAM, Found, _held_up, _listed, _longest, _without, moved
from tests.bench.streams import PEAK_MB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.bench.measure import Scale
    from tests.bench.moving import Moved, Sandbox

BEYOND_MS = 50
"""How much longer than the pause a request of the router may take beside a move."""
MANY_S = 20
"""How long the move of 200 shards with three small tables each may take, all in all."""
SLOWED = 0.8
"""What clients get done while a copy runs, of what they do without."""
FILLED = (ShardId(2), ShardId(3))


def beside_a_spare(scale: Scale) -> list[Row]:
    """Move 2 of 8 shards by a stream, five times, with 8 clients of the router who never rest.

    The file has a spare node that is not running; the longest request on a moved shard is set
    against the move's own pause.
    """
    lasting = scale.of(10, 5)

    done = rounds(scale.of(5, 1), partial(moved, STREAM, lasting, aliases="router"))
    founds = [found for _, found in done]
    waits = _longest(founds)
    beyond = [wait - one.pause * 1000 for wait, (one, _) in zip(waits, done, strict=True)]
    return [
        limit(
            "router, a spare not running: longest request beyond the pause",
            max(beyond),
            BEYOND_MS,
            "ms",
            note=f"{moving.busy()}; longest: {_listed(waits)}; {_held_up(founds)}",
        ),
        moving.flaws("moves", founds),
    ]


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
        limit(
            f"stream {shards // 2} of {shards} shards with 3 tables: the whole command",
            statistics.median(took),
            MANY_S,
            "s",
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
                return _a_second(_without(fleet, scale.of(15, 5)), 1, math.inf)

            def beside() -> tuple[Moved, float]:
                fleet.settle()
                with fleet.load() as load:
                    began = time.time() - (time.monotonic() - load.began)
                    done = fleet.move(*STREAM, "--max-rate", f"{rate}M")
                    found = load.end(0)
                window = (done.began["copy"] - began, done.began["cutover"] - began)
                return done, _a_second(found, *window)

            still, (done, busy) = in_turn(number, without, beside)
            return done, busy, still

    done = rounds(scale.of(3, 1), both)
    moves, busy, still = zip(*done, strict=True)
    copies = (seconds(one.began["cutover"] - one.began["copy"]) for one in moves)
    row = compare(
        f"stream with --max-rate {rate}M: operations a second",
        busy,
        still,
        against="without a move",
        shown="{:,.0f}".format,
        note=f"the copy took {', '.join(copies)}",
    )
    return [
        replace(row, target=f">= {SLOWED:g}", met=(row.ratio or 0) >= SLOWED),
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
    for shard in shards:
        with fleet.connect(topology.owners()[shard]) as connection:
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
    return limit(name, peak, PEAK_MB, "MB")
