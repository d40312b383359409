"""What a cutover is made of: sub-steps, of which one is a row that is executed and documented."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shardctl.moves.attempt import Attempt
    from shardctl.moves.distance import Distance
    from shardctl.moves.fences import Fence


@dataclass(frozen=True, slots=True)
class SubStep:
    """One sub-step: name and sentence are those of the timeline, the documentation and tests."""

    name: str
    sentence: str
    run: Callable[[Attempt], object]
    asks: str = ""
    """Which round trips it waits for, in order, while clients wait or their guards are armed: `s`
    to the source, `t` to the target, `p` to all poolers; `st` is both at the same time."""
    may_stop: bool = False
    """Whether the cutover may still stop before it: when time is short, or on Ctrl-C."""
    when: Callable[[Attempt], bool] | None = None
    """Whether it is needed; None is always."""
    after: str | None = None
    """The sub-step without which it is left out."""


@dataclass(frozen=True, slots=True)
class Cutover:
    """How the ownership of shards changes with one kind of fence: its sub-steps, in order."""

    fence: Fence
    ready: tuple[SubStep, ...]
    """Clients notice nothing of these, and there is nothing to undo."""
    undoable: tuple[SubStep, ...]
    """From the guards to the point of no return, the last. When one fails, all are undone."""
    decided: tuple[SubStep, ...]
    """The target takes over. When one fails, `moves resume` begins with the first again."""
    told: tuple[SubStep, ...]
    """Each is tried, though another has failed."""
    undo: tuple[SubStep, ...]
    """What undoes it up to the point of no return."""

    @property
    def rows(self) -> tuple[SubStep, ...]:
        """List the sub-steps of a cutover that succeeds."""
        return (*self.ready, *self.undoable, *self.decided, *self.told)

    def between(self, first: str, last: str) -> tuple[SubStep, ...]:
        """List the sub-steps from one to another, both included."""
        names = [one.name for one in self.rows]
        return self.rows[names.index(first) : names.index(last) + 1]

    def until_decided(self, first: str) -> tuple[SubStep, ...]:
        """List the sub-steps from one on until the target serves the shards."""
        return self.between(first, self.decided[-1].name)

    def before(self, first: str) -> tuple[SubStep, ...]:
        """List the sub-steps before one for which `--max-pause` has to leave room, too."""
        return self.undoable[: [one.name for one in self.undoable].index(first)]


def far_ms(distance: Distance, rows: Iterable[SubStep]) -> float:
    """Sum up what sub-steps take for their round trips alone, in ms.

    >>> from shardctl.moves.distance import Distance
    >>> rows = [SubStep(one, "", print, one) for one in ("st p", "s", "t")]
    >>> far_ms(Distance(source=100, target=20), rows)
    220.0
    """
    far = {"s": distance.source, "t": distance.target, "p": distance.pooler}
    return float(sum(max(far[one] for one in trip) for row in rows for trip in row.asks.split()))
