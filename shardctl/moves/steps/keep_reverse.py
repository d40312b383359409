"""Keep reverse: what the target keeps for a reverse is made before its clients change anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.moves import reverse_kept
from shardctl.moves.step import Step

if TYPE_CHECKING:
    from shardctl.moves.context import MoveContext
    from shardctl.postgres.blocking import Holder


def probe(context: MoveContext) -> bool:
    """See whether the target has it, or none is wanted."""
    if context.plan.reverse is None or context.past_cutover():
        return True
    return reverse_kept.is_made(context)


def run(context: MoveContext) -> None:
    """Publish the copies on the target, then make the slot; raises slot_blocked."""

    def tell(blocker: Holder) -> None:
        context.notice(
            f"node {context.plan.target}: the slot for a reverse (--keep-reverse) can be made when "
            f"this transaction ends: {blocker}"
        )

    reverse_kept.make(context, tell)


def undo(context: MoveContext) -> None:
    """Drop slot and publication on the target."""
    if context.plan.reverse is not None and not context.target_lost:
        reverse_kept.drop_on_target(context)


STEP = Step(
    "keep-reverse",
    "publishes the copies on the target and makes a slot there, for a reverse",
    probe,
    run,
    undo,
    leaves=lambda plan: f"slot and publication shardctl_{plan.reverse}",
)
