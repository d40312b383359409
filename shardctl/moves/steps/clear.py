"""Clear: stops an empty server in the target's place, and moves its directory aside."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from shardctl.errors import ShardctlError, together
from shardctl.moves import cloned
from shardctl.moves.preflight import directory, fleet, occupant, target
from shardctl.moves.preflight.subject import Context
from shardctl.moves.step import Step
from shardctl.postgres import clone as clones
from shardctl.postgres.connection import NodeUnavailable

if TYPE_CHECKING:
    from shardctl.moves.context import MoveContext


def probe(context: MoveContext) -> bool:
    """Return whether nothing is in the clone's way."""
    if context.past_cutover():
        return True
    try:
        clones.look(cloned.of(context))
    except clones.TargetNotEmpty:
        return False
    return True


def run(context: MoveContext) -> None:
    """Check again that the server has no data, and move it aside.

    The plan may be old. Raises TargetUnfit, or Problems for several.
    """
    target = context.plan.target
    with contextlib.suppress(NodeUnavailable):  # it does not run, or lacks the database
        context.lock(target)
    problems = _problems(context)
    if problems:
        raise together(problems)
    context.forget(target)
    clones.set_aside(cloned.of(context))


def undo(context: MoveContext) -> None:
    """Put it back, running as before."""
    clones.bring_back(cloned.of(context))


def _problems(context: MoveContext) -> list[ShardctlError]:
    clone = cloned.of(context)
    server, asked = clone.server, Context(context.topology, context.plan, context.purpose)
    asked.found[target.look] = target.Machine(clone.machine, server.account)
    asked.found[target.programs] = server.binaries
    if asked.ask(occupant.look) is not None:
        asked.found[occupant.same_place] = server.running()
        return list(occupant.judge(asked))
    asked.ask(directory.look)
    # The nodes' journals may have moves that left copies in it.
    problems = asked.ask(fleet.look).problems
    return [*problems, *directory.in_the_way(asked)]


STEP = Step("clear", "moves an empty server out of the clone's way", probe, run, undo)
