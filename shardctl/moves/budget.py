"""The rest of `--max-pause`, and how much of it later sub-steps need."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from shardctl.errors import ShardctlError
from shardctl.moves.sub_step import round_trips_ms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardctl.moves.attempt import Attempt
    from shardctl.moves.sub_step import SubStep

REST_S = 0.3
"""The seconds of the budget that must remain at the decision, for what follows."""


class BudgetSpent(ShardctlError):
    """A cutover that took too long; this process or its guards undo it."""

    def __init__(self, before: str, left_s: float) -> None:
        super().__init__(
            f"the cutover was undone before `{before}`: only {left_s:.2f} s of --max-pause were "
            "left",
            hint="run `shardctl moves show` to see what was slow, then `shardctl moves resume`, "
            "with a longer --max-pause if needed",
        )


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
        """Refuse to continue too late, or after Ctrl-C; raises BudgetSpent, Interrupted.

        A process that was suspended and wakes up late changes nothing.
        """
        if time.monotonic() > self.latest(before):
            raise BudgetSpent(before, self.left())
        self._at.interrupt.require_none(f"interrupted before `{before}`: the cutover was undone")
