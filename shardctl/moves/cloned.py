"""What method `clone` makes on the target's host: one server in one data directory."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from shardctl.hosts.host import HostUnreachable
from shardctl.moves.destroyed import TargetThere
from shardctl.moves.plan import MoveRefused
from shardctl.postgres import clone as clones
from shardctl.postgres import hosted, timeline
from shardctl.postgres.clone import Clone

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardctl.moves.context import MoveContext

_TIMELINE = "SELECT timeline_id FROM pg_control_checkpoint()"


def of(context: MoveContext) -> Clone:
    """Return the move's clone, whether it exists or not; raises MoveRefused, HostUnreachable."""
    return context.own(Clone, lambda: _find(context))


def _find(context: MoveContext) -> Clone:
    target = context.target
    if target.data_directory is None:
        raise MoveRefused(
            f"node {target.name} has no data_directory, so nothing can be cloned onto it",
            hint="add data_directory to the node in the topology: an absolute path on its host",
        )
    server = hosted.find(target, target.data_directory)
    return Clone(context.plan.id, context.plan.copy_slot, server)


def remains(context: MoveContext) -> Callable[[], object] | None:
    """Give what deletes a stopped clone that was never promoted; None where there is none.

    Raises TargetThere where it runs or was promoted.
    """
    target = context.plan.target
    try:
        clone = of(context)
        if clones.look(clone) == "absent":
            return None
    except (HostUnreachable, clones.TargetNotEmpty, clones.CloneOfAnother):
        return None  # another machine, or what somebody has put in its place
    if clone.server.running():
        raise TargetThere(target, f"its server runs in {clone.server.data_directory}")
    there = timeline.control_data(clone.machine, clone.server).timeline
    with context.on(context.plan.source):
        row = context.session(context.plan.source).execute(_TIMELINE).fetchone()
    if row is None or there != row[0]:
        raise TargetThere(target, f"{clone.server.data_directory} was promoted")
    return partial(clones.remove, clone)
