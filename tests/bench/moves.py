"""Moves of shards beside clients at work: how long these wait, with few shards and with many."""

from __future__ import annotations

import statistics
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.bench import moving
from tests.bench.measure import Row, compare, in_turn, limit, milliseconds, rounds, say, seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.bench.measure import Scale
    from tests.bench.moving import Moved, Sandbox, Scripted

Found = dict[str, Any]
"""The report of a load."""

MEDIAN_MS, WORST_MS = 80, 200
MEDIAN, WORST = 0.45, 0.7
"""How long clients of a streamed move may wait, of what they wait in a clone's."""
SCRIPT = 1.3
"""How long the pause of a streamed move may be, of the quick script's."""
MANY_MS = 1_000
PRUNE_MS = 100
PACED = 50
"""Operations a second of each client that rests between them: two cores are then half idle."""
PACED_MS = 25

CLONE = ("2-3", "--to", "c")
STREAM = ("2-3", "--to", "b", "--method", "stream")


def move(scale: Scale) -> list[Row]:
    """Move 2 of 8 shards on 2 nodes, five times, with 8 clients who never rest.

    The reference is a quick script, in turn with shardctl: `pg_basebackup`, PAUSE one alias
    after another, renames, `pg_promote`, RELOAD, RESUME. It has the same settings in the clone,
    and all sessions open before. It leaves out the journal, the guards, the deadline, the drain,
    the snapshot and the comparison, the new id blocks, and the rules that keep clients out of the
    clone; see `tests/bench/script.py`.

    Each move has a new fleet, and a load of the same length without a move, before or after it
    by turns. The load is a process of its own, so that neither shardctl nor the script holds up
    clients by sharing an interpreter with them. On shards that stay the longest wait is set
    against that on the same shards without a move. The longest of some 40,000 requests is what
    anything on the machine has held up: the load tells how long it was held up itself.
    """
    lasting = scale.of(15, 5)

    def both(number: int) -> list[Any]:
        ours = partial(_and_without, number, lasting)
        return in_turn(number, ours, partial(_scripted, number, "c", "clone", lasting))

    done = rounds(scale.of(5, 1), both)
    (moves, during, still), (scripts, scripted) = (
        zip(*side, strict=True) for side in zip(*done, strict=True)
    )
    rested = _at_a_pace(CLONE, lasting / 3, scale.of(5, 1))
    waits, theirs = _longest(during), _longest(scripted)
    stayed = [[_longest_of_those_that_stay(one) for one in founds] for founds in (during, still)]
    return [
        _waits("move", waits, theirs, against="a quick script", note=_held_up(scripted)),
        limit(
            f"  median of {len(waits)}",
            statistics.median(waits),
            MEDIAN_MS,
            "ms",
            note=f"{moving.busy()}; {_held_up(during)}",
        ),
        limit("  worst", max(waits), WORST_MS, "ms", note=_listed(waits)),
        _at_rest(rested),
        moving.flaws("moves", [*during, *rested]),
        compare(
            "  shards that stay: longest wait",
            *stayed,
            against="without a move",
            shown=milliseconds,
            target=2,
        ),
        _pauses(moves, scripts),
    ]


def stream(scale: Scale) -> list[Row]:
    """Move 2 of 8 shards, five times, with 8 clients who never rest: streamed, and by a clone.

    Each move has a new fleet of two nodes; the streamed one goes to the other of them, which
    serves its own shards meanwhile. So does that of a quick script, in turn with both: see
    `tests/bench/script.py` for what it leaves out.
    """
    lasting = scale.of(15, 5)

    def all_three(number: int) -> list[Any]:
        ours = (partial(moved, words, lasting, number) for words in (STREAM, CLONE))
        return in_turn(number, *ours, partial(_scripted, number, "b", "stream", lasting))

    done = rounds(scale.of(5, 1), all_three)
    (moves, during), (_, cloning), (scripts, _) = (
        zip(*side, strict=True) for side in zip(*done, strict=True)
    )
    rested = _at_a_pace(STREAM, lasting / 3, scale.of(5, 1))
    waits, theirs = _longest(during), _longest(cloning)
    return [
        _waits("stream", waits, theirs, against="a clone", target=MEDIAN),
        limit(
            "  worst, of the worst of a clone",
            max(waits) / max(theirs),
            WORST,
            "",
            note=f"{_listed(waits)}; {_held_up(during)}",
        ),
        _at_rest(rested, most=PACED_MS),
        moving.flaws("streamed moves", [*during, *rested]),
        _pauses(moves, scripts, target=SCRIPT),
    ]


def moved(
    words: Sequence[str],
    lasting: float,
    number: int,
    *,
    aliases: str = "shard",
    rate: int | None = None,
) -> tuple[Moved, Found]:
    """Move by shardctl in a new fleet with the load."""
    say(f"  move {number + 1}: {' '.join(words)} ({moving.busy()})")
    with moving.sandbox(8, 2, 1) as fleet:
        fleet.settle()
        return _with(fleet, words, lasting, aliases=aliases, rate=rate)


def _at_a_pace(words: Sequence[str], lasting: float, count: int) -> list[Found]:
    """Move beside clients that rest between their operations."""
    return [found for _, found in rounds(count, partial(moved, words, lasting, rate=PACED))]


def _and_without(number: int, lasting: float) -> tuple[Moved, Found, Found]:
    """Clone by shardctl in a new fleet, and let the same load run without a move."""
    say(f"  move {number + 1} ({moving.busy()})")
    with moving.sandbox(8, 2, 1) as fleet:

        def still() -> Found:
            fleet.settle()
            return _without(fleet, lasting)

        def with_move() -> tuple[Moved, Found]:
            fleet.settle()
            return _with(fleet, CLONE, lasting)

        without, (move, during) = in_turn(number, still, with_move)
        return move, during, without


def _scripted(number: int, target: str, method: str, lasting: float) -> tuple[Scripted, Found]:
    """Move by a script in a new fleet, which has had the same load before as shardctl's."""
    say(f"  the script's move {number + 1} ({moving.busy()})")
    with moving.sandbox(8, 2, 1) as fleet:
        if number % 2 == 0 and method == "clone":
            fleet.settle()
            _without(fleet, lasting)
        fleet.settle()
        with fleet.load() as load:
            done = fleet.script(target, 2, 3, name="script", method=method)
            return done, load.end(lasting)


def _at_rest(rested: Sequence[Found], *, most: float | None = None) -> Row:
    """Show the longest waits of those clients."""
    waits = _longest(rested)
    median = statistics.median(waits)
    return Row(
        f"  with {PACED} operations a second a client: median of {len(waits)}",
        f"{median:.1f} ms",
        "",
        target="-" if most is None else f"<= {most:g} ms",
        met=None if most is None else median <= most,
        note=_listed(waits),
    )


def _waits(
    name: str,
    ours: Sequence[float],
    theirs: Sequence[float],
    *,
    against: str,
    target: float | None = None,
    note: str = "",
) -> Row:
    """Set the longest waits on moved shards against those of other moves."""
    return compare(
        f"{name} 2 of 8 shards: longest wait",
        [wait / 1000 for wait in ours],
        [wait / 1000 for wait in theirs],
        against=against,
        shown=milliseconds,
        target=target,
        note=f"{against}: {_listed(theirs)}{note and f'; {note}'}",
    )


def _pauses(
    moves: Sequence[Moved], scripts: Sequence[Scripted], *, target: float | None = None
) -> Row:
    """Set the pauses by themselves against those of a script, with the sub-steps of both."""

    def steps(all_spans: Sequence[dict[str, float]]) -> str:
        found = {n: statistics.median(one.get(n, 0.0) for one in all_spans) for n in all_spans[0]}
        return ", ".join(f"{name} {milliseconds(median)}" for name, median in found.items())

    return compare(
        "  the pause alone",
        [one.pause for one in moves],
        [one.pause for one in scripts],
        against="a quick script",
        shown=milliseconds,
        target=target,
        note=f"ours: {steps([one.spans for one in moves])};"
        f" the script's: {steps([one.spans for one in scripts])}",
    )


def _longest(founds: Sequence[Found]) -> list[float]:
    """Give the longest wait on moved shards of each load, in milliseconds."""
    return [found["longest_moved_ms"] for found in founds]


def _longest_of_those_that_stay(found: Found) -> float:
    """Give the seconds of the longest wait on the shards that do not move."""
    stayed: list[float] = [s["longest_ms"] for s in found["shards"] if s["shard"] not in (2, 3)]
    return max(stayed) / 1000


def _held_up(founds: Sequence[Found]) -> str:
    shown = ", ".join(f"{found['held_up_ms']:.0f}" for found in founds)
    return f"load held up itself: {shown} ms"


def _listed(waits: Sequence[float]) -> str:
    return ", ".join(f"{wait:.1f}" for wait in waits)


def many(scale: Scale) -> list[Row]:
    """Move 500 of 1,000 shards with 3 tables each, and prune; all on one node at first.

    Clients go through `node` aliases: those of moved shards meet the fence, read the map again
    and go on. The third table is the load's own. Prune drops 500 schemas on either node, which
    have PostgreSQL's own `max_locks_per_transaction`, while a load runs; its longest wait
    stands beside that of a load of the same length without.
    """
    shards = scale.of(1_000, 20)
    lasting = scale.of(15, 5)

    def once(number: int) -> tuple[Moved, Found, Found, Found, float]:
        say(f"  {shards} shards, move {number + 1} ({moving.busy()})")
        with moving.sandbox(shards, 1, 1, aliases=["node"]) as fleet:
            words = [f"0-{shards // 2 - 1}", "--to", "b", "--retain", "0s"]
            move, load = _with(fleet, words, lasting, aliases="node")
            fleet.settle()
            without = _without(fleet, lasting, aliases="node")
            fleet.settle()
            return move, load, without, *_prune(fleet, lasting)

    done = rounds(scale.of(5, 1), once)
    moves, during, still, pruning, took = zip(*done, strict=True)
    pauses = [one.pause * 1000 for one in moves]
    pruned = [found["longest_ms"] for found in pruning]
    return [
        limit(
            f"move {shards // 2} of {shards:,} shards, node aliases: pause, worst of {len(pauses)}",
            max(pauses),
            MANY_MS,
            "ms",
            note=f"{moving.busy()}; the step: {seconds(max(m.steps['cutover'] for m in moves))}",
        ),
        moving.flaws("moves", during),
        limit(
            f"  prune of {shards // 2} schemas a node: others' longest wait",
            max(pruned),
            PRUNE_MS,
            "ms",
            note=f"without: {max(found['longest_ms'] for found in still):.0f} ms; "
            f"{moving.busy()}; prune took {seconds(statistics.median(took))}",
        ),
        moving.flaws("prune", pruning),
    ]


def _with(
    fleet: Sandbox,
    words: Sequence[str],
    lasting: float,
    *,
    aliases: str = "shard",
    rate: int | None = None,
) -> tuple[Moved, Found]:
    """Move while a load runs that lasts so many seconds, or as long as the move."""
    with fleet.load(aliases, rate) as load:
        return fleet.move(*words), load.end(lasting)


def _without(fleet: Sandbox, lasting: float, *, aliases: str = "shard") -> Found:
    with fleet.load(aliases) as load:
        return load.end(lasting)


def _prune(fleet: Sandbox, lasting: float) -> tuple[Found, float]:
    """Prune while a load runs: give what that reports, and the seconds of the command."""
    with fleet.load("node") as load:
        took = fleet.prune()
        return load.end(lasting), took
