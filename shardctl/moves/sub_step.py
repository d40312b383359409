"""The sub-steps of a cutover, rows that are executed and documented; the round trips they ask."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl.hosts import ports

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shardctl.moves.attempt import Attempt
    from shardctl.topology.model import Node, Pooler


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
    owed: bool = False
    """Whether it ends what the one before began, also if another command has taken over."""


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

    >>> rows = [SubStep(one, "", print, one) for one in ("st p", "s", "t")]
    >>> round_trips_ms(RoundTrips(source=100, target=20), rows)
    220.0
    """
    far = {"s": round_trips.source, "t": round_trips.target, "p": round_trips.pooler}
    return float(sum(max(far[one] for one in trip) for row in rows for trip in row.asks.split()))


NEAR_MS = 1.0
"""A shorter round trip counts as 0: the constants in `prediction` include those."""
_TRIPS = (3, 15)
"""The least and the most samples, unless one is shorter than NEAR_MS."""
_LASTING_S = 0.5
"""After this time only the least number of samples is taken."""


@dataclass(frozen=True, slots=True)
class RoundTrips:
    """Round trips in ms, to source, target and the slowest pooler; 0 is local.

    >>> RoundTrips.of(source=100.2, target=0.3)
    RoundTrips(source=100.2, target=0.0, pooler=0.0)
    """

    source: float = 0.0
    target: float = 0.0
    pooler: float = 0.0

    @classmethod
    def of(cls, *, source: float = 0.0, target: float = 0.0, pooler: float = 0.0) -> RoundTrips:
        """Make it from measured round trips, in ms."""
        return cls(*(0.0 if ms < NEAR_MS else ms for ms in (source, target, pooler)))


def shortest_ms(ask: Callable[[], object]) -> float:
    """Call `ask`, which takes one round trip, a few times; return the shortest time, in ms.

    On a busy machine most answers come late, even from a local server.
    """
    took: list[float] = []
    least, most = _TRIPS
    until = time.monotonic() + _LASTING_S
    while len(took) < least or (len(took) < most and time.monotonic() < until):
        began = time.monotonic()
        ask()
        took.append((time.monotonic() - began) * 1000)
        if took[-1] < NEAR_MS:
            break
    return min(took)


def of_machine(node: Node | Pooler) -> float:
    """Measure the round trip to a node's or a pooler's machine, in ms; its server need not run."""
    # Resolve the name once, as sessions do.
    address = next(iter(ports.addresses(node.host)), node.host)
    return shortest_ms(lambda: ports.knock(address, node.port))
