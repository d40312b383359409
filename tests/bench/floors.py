"""Each sub-step of a cutover beside what PostgreSQL and PgBouncer themselves take for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardctl.moves import clone_cutover, stream_cutover
from tests.bench import moving
from tests.bench.measure import Row, compare, in_turn, milliseconds, rounds, say

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.bench.measure import Scale
    from tests.bench.moving import Moved, Scripted

MOST = 1.3
"""How long clients may wait, of the sum of the floors."""

# The stream's floor has no look behind its fence: that goes on while the mark arrives.
_PARTS = {"drain": "arrive", "standbys": "arrive", "snapshot": "arrive", "standbys again": "decide"}
_METHODS = {
    "stream": ("b", stream_cutover.CUTOVER, _PARTS),
    "clone": ("c", clone_cutover.CUTOVER, {"drain": "mark", "open": "claim"}),
}
"""Where shards of a go, the table of the sub-steps, and which are part of another for its floor."""


def floors(scale: Scale) -> list[Row]:
    """Move 2 of 8 shards, in turn with the shortest program for each sub-step.

    See `floor.py` for what these do. No load runs, so that both sides have the machine to
    themselves; `stream-move` and `move` have one. Each move has a new fleet.
    Sub-steps that one program needs and the other does beside another are summed up with that.
    """
    return [row for method in _METHODS for row in _set_against(method, scale)]


def _set_against(method: str, scale: Scale) -> list[Row]:
    target, table, parts = _METHODS[method]

    def both(number: int) -> list[Any]:
        say(f"  {method}, move {number + 1} ({moving.busy()})")

        def ours() -> Moved:
            with moving.sandbox(8, 2, 1) as fleet:
                fleet.settle()
                return fleet.move("2-3", "--to", target, "--method", method)

        def floor() -> Scripted:
            with moving.sandbox(8, 2, 1) as fleet:
                fleet.settle()
                return fleet.script(target, 2, 3, name="floor", method=method)

        return in_turn(number, ours, floor)

    done = rounds(scale.of(7, 1), both)
    waiting = {row.name for row in table.between("pause", "route")}
    ours = [
        _summed({n: s for n, s in move.spans.items() if n in waiting}, parts) for move, _ in done
    ]
    least = [_summed(one.spans, parts) for _, one in done]
    whole = compare(
        f"{method}: the pause, of the sum of its floors",
        [move.pause for move, _ in done],
        [sum(one.values()) for one in least],
        against="floor",
        shown=milliseconds,
        target=MOST,
        note="ours " + ", ".join(milliseconds(move.pause) for move, _ in done),
    )
    return [whole, *(_row(name, ours, least) for name in least[0])]


def _row(
    name: str, ours: Sequence[Mapping[str, float]], least: Sequence[Mapping[str, float]]
) -> Row:
    mine, floor = [one.get(name, 0.0) for one in ours], [one[name] for one in least]
    return compare(f"  {name}", mine, floor, against="floor", shown=milliseconds)


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
