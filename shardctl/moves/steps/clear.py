"""Clear: an empty server in the target's place is stopped, and its directory moved aside."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from shardctl.errors import ShardctlError, together
from shardctl.moves.preflight import directory as preflight_directory
from shardctl.moves.preflight import fleet as preflight_fleet
from shardctl.moves.preflight import occupant as preflight_occupant
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
    target = world.plan.target
    with contextlib.suppress(NodeUnavailable):  # it does not run, or has no such database
        world.lock(target)
    problems = _problems(world)
    if problems:
        raise together(problems)
    world.forget(target)
    clones.set_aside(world.clone)


def undo(world: World) -> None:
    """Let it stand and run as before."""
    clones.bring_back(world.clone)


def _problems(world: World) -> list[ShardctlError]:
    node, server = world.target, world.clone.server
    found = preflight_occupant.look(world.topology, node, purpose=world.purpose)
    if found is not None:
        same = server.running()
        user = world.topology.database.user
        return list(preflight_occupant.judge(node, found, user=user, same_place=same))
    place = preflight_directory.look(
        world.clone.machine,
        server.data_directory,
        programs=server.binaries,
        account=server.account,
    )
    fleet = preflight_fleet.look(world.topology, world.plan, purpose=world.purpose)
    return [
        *fleet.problems,  # whose journal may know what is in it
        *preflight_directory.judge(
            node,
            place,
            systems={peer.system for peer in fleet.peers.values()},
            unproven=preflight_fleet.unproven(node.name, fleet),
            account=server.account,
            occupied=False,
        ),
    ]


STEP = Step("clear", "moves an empty server out of the clone's way", probe, run, undo)
