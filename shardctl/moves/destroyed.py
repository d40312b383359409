"""Going back from `promoting` when the target is no more: only its source has the shards."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from shardctl.access import fence
from shardctl.errors import ShardctlError
from shardctl.hosts.reach import HostUnreachable
from shardctl.postgres import clone as clones
from shardctl.postgres import timeline
from shardctl.postgres.connection import NodeUnavailable
from shardctl.provision import maps

if TYPE_CHECKING:
    from shardctl.moves.world import World

_SECONDS = 30.0
_TIMELINE = "SELECT timeline_id FROM pg_control_checkpoint()"


class TargetThere(ShardctlError):
    """A target that is said to be destroyed, and is there."""

    def __init__(self, node: str, what: str) -> None:
        super().__init__(
            f"node {node} is not destroyed: {what}",
            hint="`shardctl moves resume` finishes the move; if the node must not serve again, "
            "stop its server, then abort with --target-destroyed",
        )
        self.node = node


def take_back(world: World) -> None:
    """Give the source its shards back, in journal state `undone`; nothing else is done.

    That the target is no more is the operator's word, as far as nobody here can see it. A clone
    that is there must be stopped and never have been promoted; it is deleted first, so that it
    cannot be any more. Raises TargetThere, OwnershipDiffers where other nodes were told that the
    target owns the shards, and what `clones.remove` and `fence.take_back` raise.
    """
    source = world.plan.source
    maps.version(world.topology, purpose=world.purpose)
    _require_gone(world)
    with world.on(source):
        deadline = time.monotonic() + _SECONDS
        fence.take_back(world.session(source), source, world.plan.id, deadline=deadline)


def _require_gone(world: World) -> None:
    target = world.plan.target
    try:
        world.session(target)
    except NodeUnavailable:
        pass
    else:
        raise TargetThere(target, "its server answers")
    try:
        clone = world.clone
        if clones.look(clone) == "absent":
            return
    except (HostUnreachable, clones.TargetNotEmpty, clones.CloneOfAnother):
        return  # another machine, or what somebody has put in its place
    if clone.server.running() is not None:
        raise TargetThere(target, f"its server runs in {clone.server.data_directory}")
    there = timeline.control_data(clone.machine, clone.server).timeline
    with world.on(world.plan.source):
        row = world.session(world.plan.source).execute(_TIMELINE).fetchone()
    if row is None or there != row[0]:
        raise TargetThere(target, f"{clone.server.data_directory} was promoted")
    clones.remove(clone)
