"""Clone: copies the source's whole server onto the target."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.moves import admission
from shardctl.moves.step import Step
from shardctl.postgres import clone as clones
from shardctl.postgres import copying
from shardctl.postgres.source import Source

if TYPE_CHECKING:
    from shardctl.moves.context import MoveContext


def probe(context: MoveContext) -> bool:
    """Return whether the target has a complete data directory of this move."""
    return context.past_cutover() or clones.look(context.clone) in ("made", "opened")


def run(context: MoveContext) -> None:
    """Copy, with the settings that keep everybody but shardctl out."""
    with context.on(context.plan.source):
        session = context.session(context.plan.source)
        with context.kept_progress() as progress:
            copying.make(
                context.clone,
                Source(context.source, context.topology.database),
                session,
                addresses=admission.known(context),
                progress=progress,
                max_rate=context.plan.options.max_rate,
                clone_with=context.plan.options.clone_with,
            )


def undo(context: MoveContext) -> None:
    """Stop the clone and delete what this move made, and nothing else."""
    clones.remove(context.clone)
    context.remove_progress()


STEP = Step("clone", "copies the source onto the target", probe, run, undo)
