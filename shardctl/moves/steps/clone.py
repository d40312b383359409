"""Clone: copies the source's whole server onto the target.

The copy accepts shardctl's addresses only, and those of a machine that continues the move.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from shardctl.moves.preflight import login
from shardctl.moves.step import Step
from shardctl.postgres import clone as clones
from shardctl.postgres import copying
from shardctl.postgres.connection import NodeUnavailable

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
                copying.Source(context.source, context.topology.database),
                session,
                addresses=known(context),
                progress=progress,
                max_rate=context.plan.options.max_rate,
                clone_with=context.plan.options.clone_with,
            )


def undo(context: MoveContext) -> None:
    """Stop the clone and delete what this move made, and nothing else."""
    clones.remove(context.clone)
    context.remove_progress()


STEP = Step("clone", "copies the source onto the target", probe, run, undo)


logger = logging.getLogger(__name__)

_SECONDS = 10.0
_POLL = 0.02


def known(context: MoveContext) -> list[str]:
    """Return the addresses from which shardctl and its guards log in to a move's target."""
    with context.on(context.plan.source):
        session = context.session(context.plan.source)
        return login.addresses(context.topology, context.target, session)


def admit(context: MoveContext) -> None:
    """Make the move's clone accept this machine, if it still accepts only listed addresses.

    The source must be reachable. Waits a few seconds until the clone's server accepts a login: if
    it does not, the step that needs it reports why. Raises what its host refuses.
    """
    clone = context.clone
    try:
        if clones.look(clone) != "made":
            return
    except (clones.TargetNotEmpty, clones.CloneOfAnother):
        return  # the clone does not exist yet, or no longer
    plan = context.plan
    with context.on(plan.source):
        session, user = context.session(plan.source), context.topology.database.user
        rules = copying.rules(user, session, known(context))
    if not (clones.admit(clone, rules) and clone.server.running()):
        return
    clone.server.reload()
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline:
        try:
            context.session(plan.target)
        except NodeUnavailable as error:
            logger.debug("move %s: %s", plan.id, error.message)
            time.sleep(_POLL)
        else:
            return
