"""What method `clone` makes on the target's host: one server in one data directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.moves.plan import MoveRefused
from shardctl.postgres import hosted
from shardctl.postgres.clone import Clone

if TYPE_CHECKING:
    from shardctl.moves.context import MoveContext


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
    return Clone(context.plan.id, context.plan.slot, server)
