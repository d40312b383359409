"""Clear: an empty server in the target's place is stopped, and its directory moved aside."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from shardctl.errors import ShardctlError, together
from shardctl.moves.preflight import directory, fleet, occupant, target
from shardctl.moves.preflight.subject import Context
from shardctl.moves.step import Step
from shardctl.postgres import clone as clones
from shardctl.postgres.connection import NodeUnavailable

if TYPE_CHECKING:
    from shardctl.moves.world import World


def probe(world: World) -> bool:
    """See whether nothing is in the clone's way."""
    if world.past_cutover():
        return True
    try:
        clones.look(world.clone)
    except clones.TargetNotEmpty:
        return False
    return True


def run(world: World) -> None:
    """Look once more whether anything in it would be missed, and move it aside.

    It may be long ago that the plan was made. Raises TargetUnfit, or Problems of several.
    """
    node = world.plan.target
    with contextlib.suppress(NodeUnavailable):  # it does not run, or has no such database
        world.lock(node)
    problems = _problems(world)
    if problems:
        raise together(problems)
    world.forget(node)
    clones.set_aside(world.clone)


def undo(world: World) -> None:
    """Let it stand and run as before."""
    clones.bring_back(world.clone)


def _problems(world: World) -> list[ShardctlError]:
    server, context = world.clone.server, Context(world.topology, world.plan, world.purpose)
    context.found[target.look] = target.Machine(world.clone.machine, server.account)
    context.found[target.programs] = server.binaries
    if context.ask(occupant.look) is not None:
        context.found[occupant.same_place] = server.running()
        return list(occupant.judge(context))
    context.ask(directory.look)
    # The journals of the nodes may know what is in it.
    problems = context.ask(fleet.look).problems
    return [*problems, *directory.in_the_way(context)]


STEP = Step("clear", "moves an empty server out of the clone's way", probe, run, undo)
