"""The sub-steps of a cutover, rows that are executed and documented; the round trips they ask.

When a cutover stops: at the end of `--max-pause`, and on signals, which wait until it can.
"""

from __future__ import annotations

import signal
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl.errors import Interrupted, Refused
from shardctl.hosts import ports

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import FrameType

    from shardctl.moves.attempt import Attempt
    from shardctl.topology.model import Node, Pooler

REST_S = 0.3
"""The seconds of the budget that must remain at the decision, for what follows."""


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
    """Round trips in ms, to source, target and the slowest pooler; 0 is local."""

    source: float = 0.0
    target: float = 0.0
    pooler: float = 0.0


def shortest_ms(ask: Callable[[], object]) -> float:
    """Call `ask`, which takes one round trip, a few times; return the shortest time, in ms.

    It is 0 where that is less than NEAR_MS. On a busy machine most answers come late, even from a
    local server.
    """
    took: list[float] = []
    least, most = _TRIPS
    until = time.monotonic() + _LASTING_S
    while len(took) < least or (len(took) < most and time.monotonic() < until):
        began = time.monotonic()
        ask()
        took.append((time.monotonic() - began) * 1000)
        if took[-1] < NEAR_MS:
            return 0.0
    return min(took)


def of_machine(node: Node | Pooler) -> float:
    """Measure the round trip to a node's or a pooler's machine, in ms; its server need not run."""
    # Resolve the name once, as sessions do.
    address = next(iter(ports.addresses(node.host)), node.host)
    return shortest_ms(lambda: ports.knock(address, node.port))


class Budget:
    """The rest of `--max-pause`, on the monotonic clock; it starts when the object is created.

    `revision` is the journal's at that time: a process that changes it ends this attempt. Longer
    round trips need a larger rest.
    """

    def __init__(self, at: Attempt, revision: int) -> None:
        self._at = at
        self.begin(time.monotonic())
        self.revision = revision

    def begin(self, moment: float) -> None:
        """Restart the budget at a time of `time.monotonic()`."""
        self.deadline = moment + self._at.plan.options.max_pause_s

    def left(self) -> float:
        """Return the seconds left, below 0 when it is spent."""
        return self.deadline - time.monotonic()

    def latest(self, part: str) -> float:
        """Return the latest time at which a sub-step may begin, on the monotonic clock.

        The target must own the shards soon after the budget ends: then the guards route clients.
        """
        return self._before(self._at.cutover.until_decided(part))

    def latest_after(self, part: str) -> float:
        """Return the latest time at which a sub-step must have ended, on the monotonic clock."""
        return self._before(self._at.cutover.until_decided(part)[1:])

    def _before(self, rows: Sequence[SubStep]) -> float:
        return self.deadline - REST_S - round_trips_ms(self._at.round_trips, rows) / 1000

    def require(self, before: str) -> None:
        """Refuse to continue too late, or after Ctrl-C; raises budget_spent, Interrupted.

        A process that was suspended and wakes up late changes nothing.
        """
        if time.monotonic() > self.latest(before):
            raise Refused(
                "budget_spent",
                f"the cutover was undone before `{before}`: only {self.left():.2f} s of "
                "--max-pause were left",
                hint="run `shardctl moves show` to see what was slow, then `shardctl moves "
                "resume`, with a longer --max-pause if needed",
            )
        self._at.interrupt.require_none(f"interrupted before `{before}`: the cutover was undone")


DEFERRED = "interrupted: shardctl completes or undoes the cutover first, within --max-pause"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass
class Deferred:
    """Counts deferred signals; `require_none` stops where the cutover may stop."""

    notice: Callable[[str], None]
    text: str
    asked: int = 0

    def require_none(self, what: str) -> None:
        """Raise Interrupted with the message `what` if a signal came."""
        if self.asked:
            raise Interrupted(what, hint="run `shardctl moves resume` to continue the move")

    def note(self, number: int, _frame: FrameType | None) -> None:
        """Record a signal."""
        self.asked += 1
        if number != signal.SIGHUP:  # the terminal is gone
            self.notice(self.text)


@contextmanager
def deferred(notice: Callable[[str], None], text: str = DEFERRED) -> Iterator[Deferred]:
    """Defer Ctrl-C, SIGTERM and SIGHUP while a block runs; report each by `text`.

    Only the main thread may handle signals; other threads get none, so nothing is deferred there.
    """
    held = Deferred(notice, text)
    if threading.current_thread() is not threading.main_thread():
        yield held
        return
    # None is a handler that is not Python's; an ignored signal stays ignored.
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    ours = {n: h for n, h in before.items() if h is not None and h != signal.SIG_IGN}
    try:
        for number in ours:
            signal.signal(number, held.note)
        yield held
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)
