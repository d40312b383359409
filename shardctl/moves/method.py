"""What a method of a move consists of: steps, and how the target takes over; see `methods.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from psycopg import sql

    from shardctl.moves.context import MoveContext
    from shardctl.moves.preflight.check import Facts
    from shardctl.moves.step import Step
    from shardctl.topology.model import Node


class Handover(Protocol):
    """How a target takes over shards; all but `catch_up` and `hold_snapshot` are repeatable.

    A module or an object can be one; `promotion.py` is the first.
    """

    reversible: bool
    """Whether the source can get its shards back after the claim, without another copy."""

    def prepare(self, context: MoveContext) -> None:
        """Open sessions and warm caches, before clients wait."""

    def serves(self, context: MoveContext) -> sql.Composed:
        """Compose the query of a pooler's guard: whether the target serves the shards."""

    def catch_up(self, context: MoveContext, lsn: str, *, attempt: int, deadline: float) -> None:
        """Wait until the target has all changes up to `lsn`; the clock is monotonic.

        `attempt` is the number of the cutover, which its fence has put into a stream.
        """

    def hold_snapshot(self, context: MoveContext) -> None:
        """Take a snapshot of the target for the comparison, in the context's `snapshot`."""

    def take_over(self, context: MoveContext) -> None:
        """Make the target writable, after the point of no return."""

    def claim(self, context: MoveContext, lsn: str) -> bool:
        """Make the target the owner in one transaction; return whether clients can log in."""

    def open_up(self, context: MoveContext) -> None:
        """Open the target to clients, after its claim."""

    def settle(self, context: MoveContext) -> None:
        """Check that the target runs with its own settings, while clients are served."""

    def release(self, context: MoveContext) -> None:
        """Drop what the source keeps for the target."""

    def start(self, context: MoveContext) -> None:
        """Start the target's server, before a decided move continues."""

    def require_caught_up(self, context: MoveContext, lsn: str) -> None:
        """Wait until the target of a decided move has all changes up to `lsn`."""

    def reconcile(self, context: MoveContext) -> None:
        """Bring the source's record to what the target has, where a failover may have lost it.

        It comes before everything that undoes. Raises NodeUnavailable of a target that is needed.
        """

    def finish(self, context: MoveContext) -> None:
        """Make the target a normal node, before the move is closed."""


@dataclass(frozen=True, slots=True)
class Method:
    """A method by which shards move to another node."""

    sentence: str
    accepts: Callable[[Node], None]
    """Checks a target by the topology alone; raises MoveRefused."""
    preflight: Callable[..., Facts]
    """As `preflight.check`: checks all that the move depends on, and raises every refusal."""
    steps: Sequence[Step]
    handover: Handover
    admit: Callable[[MoveContext], None]
    """Makes the target accept this machine, before it continues another machine's move."""
