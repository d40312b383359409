"""What methods of a move differ in: steps, and how the target takes over; see `methods.py`."""

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
    """How a target takes shards over; all but `catch_up` and `hold_snapshot` is repeatable.

    A module or an object of a class can be one; `promotion.py` is the first.
    """

    reversible: bool
    """Whether the source can have its shards back after the claim, without another copy."""

    def prepare(self, context: MoveContext) -> None:
        """Open sessions and read what the rest needs, before clients wait."""

    def serves(self, context: MoveContext) -> sql.Composed:
        """Compose the question of a pooler's guard: whether the target serves the shards."""

    def catch_up(self, context: MoveContext, lsn: str, *, deadline: float) -> None:
        """Wait until the target has all that the source had at `lsn`; the clock is monotonic."""

    def hold_snapshot(self, context: MoveContext) -> None:
        """Keep what the target has now for the comparison, in the context's `snapshot`."""

    def take_over(self, context: MoveContext) -> None:
        """Let the target take writes; the point of no return is behind."""

    def claim(self, context: MoveContext, lsn: str) -> bool:
        """Make the target the owner in one transaction; tell whether clients can log in, too."""

    def open_up(self, context: MoveContext) -> None:
        """Let clients log in to the target, which has claimed."""

    def settle(self, context: MoveContext) -> None:
        """See that the target runs with its own settings, while clients are served."""

    def release(self, context: MoveContext) -> None:
        """Drop what the source has kept for the target."""

    def start(self, context: MoveContext) -> None:
        """Let the target's server run, before a decided move goes on."""

    def require_caught_up(self, context: MoveContext, lsn: str) -> None:
        """See that the target of a decided move has all up to `lsn`, with time to wait for it."""

    def finish(self, context: MoveContext) -> None:
        """Make the target a node like any other, when the move is to be closed."""


@dataclass(frozen=True, slots=True)
class Method:
    """A way by which shards get to another node."""

    sentence: str
    accepts: Callable[[Node], None]
    """Refuses a target that the topology alone rules out; raises MoveRefused."""
    preflight: Callable[..., Facts]
    """As `preflight.check`: looks at all that the move depends on, and raises every refusal."""
    steps: Sequence[Step]
    handover: Handover
    fence: str
    """A name in `fences.FENCES`: what the move uses unless it is `--read-only`."""
    admit: Callable[[MoveContext], None]
    """Lets this machine log in to the target, before a move from another machine goes on."""
