"""Moves of shards beside clients at work: how long these wait, with few shards and with many."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.bench import moving
from tests.bench.measure import Row, compare, milliseconds, rounds, say, seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.bench.measure import Scale
    from tests.bench.moving import Moved, Sandbox, Scripted

Found = dict[str, Any]
"""The report of a load."""

MEDIAN_MS, WORST_MS = 80, 200
MANY_MS = 1_000
PRUNE_MS = 100
PACED = 50
"""Operations a second of each client that rests between them: two cores are then half idle."""


_CLONED = ("2-3", "--to", "c")


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen of moves beside clients who never rest, a value a round."""

    moves: list[Moved] = field(default_factory=list)
    during: list[Found] = field(default_factory=list)
    still: list[Found] = field(default_factory=list)
    scripts: list[Scripted] = field(default_factory=list)
    scripted: list[Found] = field(default_factory=list)

    def add(self, move: Moved, load: Found) -> None:
        """Take a move by shardctl in, and the load meanwhile."""
        self.moves.append(move)
        self.during.append(load)

    @classmethod
    def of(cls, rounds: Sequence[Seen]) -> Seen:
        """Put together what was seen in several rounds."""
        return cls(
            *(
                [value for one in rounds for value in getattr(one, each.name)]
                for each in fields(cls)
            )
        )


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

    def both(number: int) -> Seen:
        seen = Seen()
        sides = [
            partial(ours, number, lasting, seen, _CLONED),
            partial(_scripts, number, lasting, seen),
        ]
        for one in sides if number % 2 == 0 else reversed(sides):
            one()
        return seen

    seen = Seen.of(rounds(scale.of(5, 1), both))
    rested = rounds(scale.of(5, 1), partial(at_a_pace, _CLONED, lasting / 3))
    return [
        *_waits(seen),
        at_rest(rested),
        moving.flaws("moves", [*seen.during, *rested]),
        staying(seen, target=2),
        compare(
            "  the pause alone",
            [one.pause for one in seen.moves],
            [one.pause for one in seen.scripts],
            against="a quick script",
            shown=milliseconds,
            note=f"the script's: {_medians(seen.scripts)}",
        ),
        *moving.sub_steps(seen.moves),
    ]


def at_a_pace(words: Sequence[str], lasting: float, number: int) -> Found:
    """Move in a new fleet, beside clients that rest between their operations."""
    say(f"  move {number + 1}, with a paced load ({moving.busy()})")
    with moving.sandbox(8, 2, 1) as fleet:
        fleet.settle()
        return _with(fleet, words, lasting, rate=PACED)[1]


def at_rest(rested: Sequence[Found], *, most: float | None = None) -> Row:
    """Show the longest waits of those clients."""
    waits = [found["longest_moved_ms"] for found in rested]
    median = statistics.median(waits)
    return Row(
        f"  with {PACED} operations a second a client: median of {len(waits)}",
        f"{median:.1f} ms",
        "",
        target="-" if most is None else f"<= {most:g} ms",
        met=None if most is None else median <= most,
        note=", ".join(f"{wait:.1f}" for wait in waits),
    )


def staying(seen: Seen, *, target: float) -> Row:
    """Set the longest wait on shards that stay against that on the same shards without a move."""
    moved = seen.during[0]["moved"]
    stayed = [[_longest(found, moved=moved) for found in s] for s in (seen.during, seen.still)]
    return compare(
        "  shards that stay: longest wait",
        *stayed,
        against="without a move",
        shown=milliseconds,
        target=target,
    )


def _waits(seen: Seen) -> list[Row]:
    """Set the longest waits on moved shards against the script's, and against the aims."""
    waits = [found["longest_moved_ms"] for found in seen.during]
    scripted = [found["longest_moved_ms"] for found in seen.scripted]
    held_up, script_held_up = (
        ", ".join(f"{found['held_up_ms']:.0f}" for found in founds)
        for founds in (seen.during, seen.scripted)
    )
    return [
        compare(
            "move 2 of 8 shards: longest wait",
            [wait / 1000 for wait in waits],
            [wait / 1000 for wait in scripted],
            against="a quick script",
            shown=milliseconds,
            note=f"the script's: {', '.join(f'{wait:.1f}' for wait in scripted)}; "
            f"its load held up itself: {script_held_up} ms",
        ),
        moving.limit(
            f"  median of {len(waits)}",
            statistics.median(waits),
            f"{statistics.median(waits):.1f} ms",
            most=MEDIAN_MS,
            target=f"<= {MEDIAN_MS} ms",
            note=f"{moving.busy()}; load held up itself: {held_up} ms",
        ),
        moving.limit(
            "  worst",
            max(waits),
            f"{max(waits):.1f} ms",
            most=WORST_MS,
            target=f"<= {WORST_MS} ms",
            note=", ".join(f"{wait:.1f}" for wait in waits),
        ),
    ]


def ours(number: int, lasting: float, seen: Seen, words: Sequence[str]) -> None:
    """Move by shardctl in a new fleet, and let the same load run without a move."""
    say(f"  move {number + 1} ({moving.busy()})")
    with moving.sandbox(8, 2, 1) as fleet:
        sides: list[Callable[[], None]] = [
            lambda: seen.still.append(_without(fleet, lasting)),
            lambda: seen.add(*_with(fleet, words, lasting)),
        ]
        for side in sides if number % 2 == 0 else reversed(sides):
            fleet.settle()
            side()


def _scripts(number: int, lasting: float, seen: Seen) -> None:
    """Move by the script in a new fleet, which has had the same load before as shardctl's."""
    say(f"  the script's move {number + 1} ({moving.busy()})")
    with moving.sandbox(8, 2, 1) as fleet:
        if number % 2 == 0:
            fleet.settle()
            _without(fleet, lasting)
        fleet.settle()
        with fleet.load() as load:
            seen.scripts.append(fleet.script("c", 2, 3))
            seen.scripted.append(load.end(lasting))


def _medians(scripts: Sequence[Scripted]) -> str:
    """Tell how long each sub-step of the script took in the median."""
    return ", ".join(
        f"{name} {milliseconds(statistics.median(one.spans[name] for one in scripts))}"
        for name in scripts[0].spans
    )


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
        moving.limit(
            f"move {shards // 2} of {shards:,} shards, node aliases: pause, worst of {len(pauses)}",
            max(pauses),
            f"{max(pauses):.0f} ms",
            most=MANY_MS,
            target="< 1 s",
            note=f"{moving.busy()}; the step: {seconds(max(m.steps['cutover'] for m in moves))}",
        ),
        moving.flaws("moves", during),
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


def _longest(found: Found, *, moved: list[int]) -> float:
    """Give the seconds of the longest wait on the shards that are not among these."""
    stayed: list[float] = [s["longest_ms"] for s in found["shards"] if s["shard"] not in moved]
    return max(stayed) / 1000
