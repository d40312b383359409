"""The sub-steps of a cutover; each is a row that is executed and documented."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shardctl.moves.attempt import Attempt
    from shardctl.moves.round_trips import RoundTrips


@dataclass(frozen=True, slots=True)
class SubStep:
    """One sub-step; the timeline, the documentation and tests use its name and sentence."""

    name: str
    sentence: str
    run: Callable[[Attempt], object]
    asks: str = ""
    """The round trips it waits for, in order, while clients wait or guards are armed: `s` to the
    source, `t` to the target, `p` to all poolers; `st` is both at the same time."""
    may_stop: bool = False
    """Whether the cutover may still stop before it: when time is short, or on Ctrl-C."""
    when: Callable[[Attempt], bool] | None = None
    """Whether it is needed; None means always."""
    after: str | None = None
    """The sub-step that must not have failed."""


@dataclass(frozen=True, slots=True)
class Cutover:
    """The cutover of one method: its sub-steps, in order."""

    ready: tuple[SubStep, ...]
    """They do not affect clients and need no undo."""
    undoable: tuple[SubStep, ...]
    """From the guards to the point of no return. When one fails, all are undone."""
    decided: tuple[SubStep, ...]
    """The target takes over. When one fails, `moves resume` starts with the first again."""
    concluding: tuple[SubStep, ...]
    """Each is tried, even if another has failed."""
    undo: tuple[SubStep, ...]
    """They undo the cutover before the point of no return."""

    @property
    def rows(self) -> tuple[SubStep, ...]:
        """Return the sub-steps of a cutover that succeeds."""
        return (*self.ready, *self.undoable, *self.decided, *self.concluding)

    def between(self, first: str, last: str) -> tuple[SubStep, ...]:
        """Return the sub-steps from one to another, both included."""
        names = [one.name for one in self.rows]
        return self.rows[names.index(first) : names.index(last) + 1]

    def until_decided(self, first: str) -> tuple[SubStep, ...]:
        """Return the sub-steps from one until the target serves the shards."""
        return self.between(first, self.decided[-1].name)


def round_trips_ms(round_trips: RoundTrips, rows: Iterable[SubStep]) -> float:
    """Sum up the round trips of sub-steps, in ms.

    >>> from shardctl.moves.round_trips import RoundTrips
    >>> rows = [SubStep(one, "", print, one) for one in ("st p", "s", "t")]
    >>> round_trips_ms(RoundTrips(source=100, target=20), rows)
    220.0
    """
    far = {"s": round_trips.source, "t": round_trips.target, "p": round_trips.pooler}
    return float(sum(max(far[one] for one in trip) for row in rows for trip in row.asks.split()))
