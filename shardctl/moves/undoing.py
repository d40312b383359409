"""Undo a cutover: lift the fence, serve the clients from the source, end the guards.

Only up to the point of no return, and whoever comes first: this process, another, or a guard.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from shardctl.access import fence
from shardctl.errors import ShardctlError
from shardctl.moves import interrupts
from shardctl.moves.gates import Gates
from shardctl.postgres.connection import NodeLost, NodeUnavailable
from shardctl.state import journal
from shardctl.state.journal import MoveState
from shardctl.state.lock import NodeLocked

if TYPE_CHECKING:
    from shardctl.moves.budget import Budget
    from shardctl.moves.world import World
    from shardctl.state.journal import Move

logger = logging.getLogger(__name__)

GUARD_LAG_S = 1.0
"""How much later than the source's guard those of the poolers fire."""
TO_PROMOTING = 3
"""Changes of the journal from a cutover's begin to its point of no return."""
_RESTART_S = 20.0
_RESTART_POLL = 0.1


def call_off(world: World) -> None:
    """Undo a cutover that another process began and did not end; repeatable.

    Where the source turns out to be past the point of no return, all stays as it is; the
    journal then says `promoting`. Raises what cannot be undone, and for whom.
    """
    with (
        interrupts.deferred(world.notice) as interrupt,
        Gates(world.topology, world.after, world.plan, purpose=world.purpose) as gates,
    ):
        with world.on(world.plan.source):
            fence.lift(world.session(world.plan.source), world.plan.id)
        found = at_source(world)
        if found is not None and found.state.undoable:
            _let_go(world, gates)
            interrupt.require_none(f"move {world.plan.id}: interrupted: no cutover is at work")


def take_back(world: World, gates: Gates, budget: Budget) -> None:
    """Lift the fence unless the move is past its point of no return, and serve the clients.

    Whatever fails here is left to the guards; it is a notice, for the error that led here is
    the one to raise. But somebody else who goes on with the move has ended those guards.
    """
    try:
        _undo(world, gates, budget)
    except ShardctlError as error:
        world.notice(f"not all of it is undone, the guards are left to it: {error.message}")
        if gates.held_at is None or time.monotonic() < _pause_ends(world, gates):
            return
        try:
            gates.abandon()
        except ShardctlError as again:
            logger.warning("move %s: not resumed: %s", world.plan.id, again.message)


def _undo(world: World, gates: Gates, budget: Budget) -> None:
    """Undo what is left to undo, and see that nothing stays paused of what was paused here."""
    with world.timeline.span("undo: lift the fence"):
        found = _lift_own(world, gates, budget)
    if found is not None and found.state.undoable:
        with world.timeline.span("undo: resume"):
            _let_go(world, gates)
        with world.timeline.span("undo: end the source's guard"):
            disarm_source(world)
    elif found is None or (found.state, found.revision) != (
        MoveState.promoting,
        budget.revision + TO_PROMOTING,
    ):
        gates.abandon()


def _lift_own(world: World, gates: Gates, budget: Budget) -> Move | None:
    """Lift the fence of this attempt, and give what the source's journal says then.

    A source may lose sessions again and again; whoever ends them ends its guard, too.
    """
    source, plan = world.plan.source, world.plan
    until = time.monotonic() + _RESTART_S
    while True:
        try:
            with world.on(source):
                _require_own(world, gates, budget)
                fence.lift(world.session(source), plan.id, revision=budget.revision)
                return at_source(world)
        except NodeLost as error:
            if time.monotonic() > until:
                raise
            logger.info("move %s: %s", plan.id, error.message)
            time.sleep(_RESTART_POLL)


def _let_go(world: World, gates: Gates) -> None:
    """Serve all clients as before, and tell of poolers that are not there any more."""
    for error in gates.let_go():
        world.notice(f"{error.message}; so nothing is paused there any more")


def _pause_ends(world: World, gates: Gates) -> float:
    """Give when guards will have fired, which resume what was paused here."""
    if gates.guards_fire_at is not None:
        return gates.guards_fire_at
    return time.monotonic() + world.plan.options.max_pause_s + GUARD_LAG_S


def _require_own(world: World, gates: Gates, budget: Budget) -> None:
    """See that the move is ours: without the lock, somebody else may be at work with it.

    A source that has crashed has lost its guard, too. So it is waited for, and its lock taken
    again. Whoever has that is waited for as long as a pause may last: most end it by then.
    Raises NodeLocked, NodeUnavailable.
    """
    source = world.plan.source
    try:
        world.require_lock(source)
    except NodeLost:
        world.forget(source)
        world.notice(f"node {source} was lost: waiting for it, to lift its fence")
        ends = time.monotonic() if gates.held_at is None else _pause_ends(world, gates)
        until = max(ends, budget.deadline, time.monotonic() + _RESTART_S)
        while True:
            try:
                world.lock(source)
            except (NodeLocked, NodeLost, NodeUnavailable) as error:
                if time.monotonic() > (ends if isinstance(error, NodeLocked) else until):
                    raise
                time.sleep(_RESTART_POLL)
            else:
                return


def disarm_source(world: World) -> None:
    """End the source's guard, which has nothing to do any more."""
    session = world.sessions.pop(f"{world.plan.source}/guard", None)
    if session is None:
        return
    with world.on(world.plan.source):
        world.session(world.plan.source).execute(
            "SELECT pg_terminate_backend(%s)", [session.info.backend_pid]
        )
    session.close()


def at_source(world: World) -> Move | None:
    """Read the move on its source, over a session that is fresh if the old one broke."""
    with world.on(world.plan.source):
        return journal.find(world.session(world.plan.source), world.plan.id)


def state(world: World) -> str:
    """Tell the move's state on its source."""
    found = at_source(world)
    return found.state.value if found else "unknown"
