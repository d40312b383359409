"""What is left of `--max-pause`, and what has to be left of it for what is to come."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from shardctl.errors import ShardctlError
from shardctl.moves.sub_step import far_ms

if TYPE_CHECKING:
    from shardctl.moves.attempt import Attempt

REST_S = 0.3
"""What has to be left of the budget when it is decided, for what comes after that."""


class BudgetSpent(ShardctlError):
    """A cutover that took too long; it was undone, or its guards do that."""

    def __init__(self, before: str, left_s: float) -> None:
        super().__init__(
            f"the cutover's budget was nearly spent before `{before}` ({left_s:.2f} s left), "
            "so it was called off",
            hint="see what was slow (`shardctl moves show`), then `shardctl moves resume`; "
            "--max-pause gives it more time",
        )


class Budget:
    """What is left of `--max-pause`, on a clock that nobody sets; it begins when it is made.

    `revision` is the journal's then: what changes it ends this attempt. The farther away those
    are who will be asked, the more has to be left.
    """

    def __init__(self, at: Attempt, revision: int) -> None:
        self._at = at
        self.begin(time.monotonic())
        self.revision = revision

    def begin(self, moment: float) -> None:
        """Let it begin anew, at a time of `time.monotonic()`."""
        self.deadline = moment + self._at.plan.options.max_pause_s

    def left(self) -> float:
        """Give the seconds that are left, below 0 when it is spent."""
        return self.deadline - time.monotonic()

    def latest(self, part: str) -> float:
        """Give when a sub-step has to begin at the latest, on the monotonic clock.

        Soon after the budget's end, the target has to own the shards: guards lead clients to it.
        """
        left_ms = far_ms(self._at.distance, self._at.cutover.until_decided(part))
        return self.deadline - REST_S - left_ms / 1000

    def require(self, before: str) -> None:
        """Refuse to go on too late: a process that was stopped and wakes up does nothing more.

        Nor does one that somebody wants to stop. Raises BudgetSpent, Interrupted.
        """
        if time.monotonic() > self.latest(before):
            raise BudgetSpent(before, self.left())
        self._at.interrupt.require_none(
            f"interrupted before `{before}`: the cutover was called off"
        )
