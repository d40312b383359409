"""When a cutover stops: the rest of `--max-pause`, and signals, which wait until it can."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from shardctl.errors import Interrupted, Refused
from shardctl.moves.sub_step import round_trips_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

    from shardctl.moves.attempt import Attempt
    from shardctl.moves.sub_step import SubStep


REST_S = 0.3
"""The seconds of the budget that must remain at the decision, for what follows."""


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


_FIRST = "interrupted: shardctl completes or undoes the cutover first, within --max-pause"
_AGAIN = "interrupt ignored: shardctl is still completing or undoing the cutover"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Deferred:
    """Counts deferred signals; `require_none` stops where the cutover may stop."""

    def __init__(self, notice: Callable[[str], None], first: str, again: str) -> None:
        self.asked = 0
        self._notice = notice
        self._texts = first, again

    def require_none(self, what: str) -> None:
        """Raise Interrupted with the message `what` if a signal came."""
        if self.asked:
            raise Interrupted(what, hint="run `shardctl moves resume` to continue the move")

    def note(self, number: int, _frame: FrameType | None) -> None:
        """Record a signal."""
        self.asked += 1
        if number != signal.SIGHUP:  # the terminal is gone
            self._notice(self._texts[self.asked > 1])


@contextmanager
def deferred(
    notice: Callable[[str], None], first: str = _FIRST, again: str = _AGAIN
) -> Iterator[Deferred]:
    """Defer Ctrl-C, SIGTERM and SIGHUP while a block runs; report them with `notice`.

    Only the main thread may handle signals; other threads get none, so nothing is deferred there.
    """
    held = Deferred(notice, first, again)
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
