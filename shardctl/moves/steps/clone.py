"""Clone: the source's whole server, copied onto the target."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.moves.step import Step
from shardctl.postgres import clone as clones
from shardctl.postgres import copying
from shardctl.postgres.source import Source

if TYPE_CHECKING:
    from shardctl.moves.world import World


def probe(world: World) -> bool:
    """See whether the data directory is there, whole, and of this move."""
    return world.past_cutover() or clones.look(world.clone) in ("made", "opened")


def run(world: World) -> None:
    """Copy, with the settings that keep everybody but shardctl out."""
    with world.on(world.plan.source):
        copying.make(
            world.clone,
            Source(world.source, world.topology.database),
            world.session(world.plan.source),
            addresses=world.addresses(),
            progress=world.progress,
            max_rate=world.plan.options.max_rate,
            clone_with=world.plan.options.clone_with,
        )


def undo(world: World) -> None:
    """Stop the clone and delete what this move made, and nothing else."""
    clones.remove(world.clone)


STEP = Step("clone", "copies the source onto the target", probe, run, undo)
