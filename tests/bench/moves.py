"""Moves of shards beside clients at work: how long these wait, with few shards and with many."""

from __future__ import annotations

import statistics
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.bench import moving
from tests.bench.measure import Row, compare, milliseconds, say, seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.bench.measure import Scale
    from tests.bench.moving import Moved, Sandbox

Found = dict[str, Any]
"""The report of a load."""

MEDIAN_MS, WORST_MS = 80, 200
MANY_MS = 1_000
PRUNE_MS = 100
PACED = 50
"""Operations a second of each client that rests between them: two cores are then half idle."""


def move(scale: Scale) -> list[Row]:
    """Move 2 of 8 shards on 2 nodes, five times, with 8 clients who never rest.

    Each move has a new fleet, and a load of the same length without a move, before or after it
    by turns. The load is a process of its own, so that shardctl does not hold up clients by
    sharing an interpreter with them. On shards that stay the longest wait is set against that
    on the same shards without a move. The longest of some 40,000 requests is what anything on
    the machine has held up: the load tells how long it was held up itself.
    """
    lasting = scale.of(15, 5)
    moves: list[Moved] = []
    during: list[Found] = []
    still: list[Found] = []
    for number in range(scale.of(5, 1)):
        say(f"  move {number + 1} ({moving.busy()})")
        with moving.sandbox(8, 2, 1) as fleet:
            sides: list[Callable[[], None]] = [
                partial(_without, fleet, lasting, still),
                partial(_with, fleet, ["2-3", "--to", "c"], lasting, moves, during),
            ]
            for side in sides if number % 2 == 0 else reversed(sides):
                fleet.settle()
                side()
    paced: list[Found] = []
    for number in range(scale.of(5, 1)):
        say(f"  move {number + 1}, with a paced load ({moving.busy()})")
        with moving.sandbox(8, 2, 1) as fleet:
            fleet.settle()
            _with(fleet, ["2-3", "--to", "c"], lasting / 3, [], paced, rate=PACED)
    waits = [found["longest_moved_ms"] for found in during]
    rested = [found["longest_moved_ms"] for found in paced]
    held_up = ", ".join(f"{found['held_up_ms']:.0f}" for found in during)
    note = f"{moving.busy()}; load held up itself: {held_up} ms"
    stayed = [[_longest(found, moved=during[0]["moved"]) for found in s] for s in (during, still)]
    return [
        moving.limit(
            f"move 2 of 8 shards: longest wait, median of {len(waits)}",
            statistics.median(waits),
            f"{statistics.median(waits):.1f} ms",
            most=MEDIAN_MS,
            target=f"<= {MEDIAN_MS} ms",
            note=note,
        ),
        moving.limit(
            "  worst",
            max(waits),
            f"{max(waits):.1f} ms",
            most=WORST_MS,
            target=f"<= {WORST_MS} ms",
            note=", ".join(f"{wait:.1f}" for wait in waits),
        ),
        Row(
            f"  with {PACED} operations a second a client: median of {len(rested)}",
            f"{statistics.median(rested):.1f} ms",
            "",
            note=", ".join(f"{wait:.1f}" for wait in rested),
        ),
        moving.flaws("moves", [*during, *paced]),
        compare(
            "  shards that stay: longest wait",
            *stayed,
            against="without a move",
            shown=milliseconds,
            target=2,
        ),
        Row("  the whole command", seconds(statistics.median(m.took for m in moves)), ""),
        *moving.sub_steps(moves),
    ]


def many(scale: Scale) -> list[Row]:
    """Move 500 of 1,000 shards with 3 tables each, and prune; all on one node at first.

    Clients go through `node` aliases: those of moved shards meet the fence, read the map again
    and go on. The third table is the load's own. Prune drops 500 schemas on either node, which
    have PostgreSQL's own `max_locks_per_transaction`, while a load runs; its longest wait
    stands beside that of a load of the same length without.
    """
    shards = scale.of(1_000, 20)
    lasting = scale.of(15, 5)
    moves: list[Moved] = []
    during: list[Found] = []
    still: list[Found] = []
    pruning: list[Found] = []
    took: list[float] = []
    for number in range(scale.of(5, 1)):
        say(f"  {shards} shards, move {number + 1} ({moving.busy()})")
        with moving.sandbox(shards, 1, 1, aliases=["node"]) as fleet:
            words = [f"0-{shards // 2 - 1}", "--to", "b", "--retain", "0s"]
            _with(fleet, words, lasting, moves, during, aliases="node")
            fleet.settle()
            _without(fleet, lasting, still, aliases="node")
            fleet.settle()
            took.append(_prune(fleet, lasting, pruning))
    waits = [found["longest_moved_ms"] for found in during]
    pauses = [one.pause * 1000 for one in moves]
    pruned = [found["longest_ms"] for found in pruning]
    return [
        moving.limit(
            f"move {shards // 2} of {shards:,} shards, node aliases: pause, worst of {len(pauses)}",
            max(pauses),
            f"{max(pauses):.0f} ms",
            most=MANY_MS,
            target="< 1 s",
            note=f"{moving.busy()}; the step: {seconds(max(m.steps['cutover'] for m in moves))}",
        ),
        Row(
            "  longest wait on moved shards",
            f"{max(waits):.0f} ms",
            "",
            note=", ".join(f"{wait:.0f}" for wait in waits),
        ),
        moving.flaws("moves", during),
        *moving.sub_steps(moves),
        moving.limit(
            f"  prune of {shards // 2} schemas a node: others' longest wait",
            max(pruned),
            f"{max(pruned):.0f} ms",
            most=PRUNE_MS,
            target=f"< {PRUNE_MS} ms",
            note=f"without: {max(found['longest_ms'] for found in still):.0f} ms; "
            f"{moving.busy()}; prune took {seconds(statistics.median(took))}",
        ),
        moving.flaws("prune", pruning),
    ]


def _with(
    fleet: Sandbox,
    words: list[str],
    lasting: float,
    moves: list[Moved],
    during: list[Found],
    *,
    aliases: str = "shard",
    rate: int | None = None,
) -> None:
    """Move while a load runs that lasts so many seconds, or as long as the move."""
    with fleet.load(aliases, rate) as load:
        moves.append(fleet.move(*words))
        during.append(load.end(lasting))


def _without(fleet: Sandbox, lasting: float, still: list[Found], *, aliases: str = "shard") -> None:
    with fleet.load(aliases) as load:
        still.append(load.end(lasting))


def _prune(fleet: Sandbox, lasting: float, pruning: list[Found]) -> float:
    """Prune while a load runs, and give the seconds of the command."""
    with fleet.load("node") as load:
        took = fleet.prune()
        pruning.append(load.end(lasting))
    return took


def _longest(found: Found, *, moved: list[int]) -> float:
    """Give the seconds of the longest wait on the shards that are not among these."""
    stayed: list[float] = [s["longest_ms"] for s in found["shards"] if s["shard"] not in moved]
    return max(stayed) / 1000
