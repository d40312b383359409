"""Undo a cutover: lift the fence, serve the clients from the source, end the guards.

Only before the point of no return. This process, another one and the guards may all do it.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from shardctl.access import fence
from shardctl.errors import ShardctlError
from shardctl.moves import stream_claim
from shardctl.moves.context import Use
from shardctl.moves.paused_poolers import PausedPoolers
from shardctl.moves.sub_step import SubStep, deferred
from shardctl.postgres.connection import NodeLost, NodeUnavailable
from shardctl.state import journal
from shardctl.state.journal import MoveState
from shardctl.state.lock import NodeLocked

if TYPE_CHECKING:
    from shardctl.moves.attempt import Attempt
    from shardctl.moves.context import MoveContext
    from shardctl.state.journal import Move

logger = logging.getLogger(__name__)

GUARD_LAG_S = 1.0
"""How much later than the source's guard the poolers' guards fire."""
TO_PROMOTING = 3
"""Changes of the journal from a cutover's start to its point of no return."""
_RESTART_S = 20.0
_RESTART_POLL = 0.1


def call_off(context: MoveContext) -> None:
    """Undo a cutover that another process began and did not end; repeatable.

    A source past the point of no return is left unchanged; the journal then says `promoting`.
    Raises the errors of nodes and poolers where the undo fails.
    """
    with (
        deferred(context.notice) as interrupt,
        PausedPoolers(context.topology, context.plan, purpose=context.purpose) as pauses,
    ):
        reconcile(context)
        with context.using(context.plan.source) as session:
            fence.lift(session, context.plan.id)
        found = at_source(context)
        if found is not None and found.state.undoable:
            _let_go(context, pauses)
            interrupt.require_none(f"move {context.plan.id}: interrupted: no cutover is running")


def reconcile(context: MoveContext) -> None:
    """Bring the source's record to what a stream's target has, where a failover may have lost it.

    It comes before everything that undoes. With a clone, standbys of the source are refused, or the
    operator's business. Raises NodeUnavailable of a target that is needed.
    """
    if context.plan.streams:
        stream_claim.reconcile(context)


def take_back(at: Attempt) -> None:
    """Lift the fence unless the move is past its point of no return, and serve the clients.

    The guards finish what fails here, and a notice reports it: the caller raises the error that led
    here. But another process that has taken over the move has ended those guards.
    """
    try:
        at.do(SUB_STEPS)
    except ShardctlError as error:
        at.context.notice(
            "the cutover could not be undone completely; the guards on the poolers' hosts and in "
            f"node {at.plan.source} will finish it: {error.message}"
        )
        if at.pauses.held_at is None or time.monotonic() < _pause_ends(at):
            return
        try:
            at.pauses.abandon()
        except ShardctlError as again:
            logger.warning("move %s: not resumed: %s", at.plan.id, again.message)


def lift_fence(at: Attempt) -> None:
    """Lift the fence of this attempt, and read the source's journal after that.

    Only with the source's lock: otherwise another process may be running the move. A source that
    has crashed has lost its guard, too: so wait for it, and take its lock again. If another process
    has the lock, wait as long as a pause may last: most release it by then. If that has taken over
    the move, resume what this one has paused. Raises NodeLocked, NodeUnavailable.
    """
    context, plan, told = at.context, at.plan, False
    ends = time.monotonic() if at.pauses.held_at is None else _pause_ends(at)
    until = max(ends, at.budget.deadline, time.monotonic() + _RESTART_S)
    while True:
        try:
            if not context.holds(plan.source):
                context.forget(plan.source)  # no pid of before it is a guard's any more
                context.lock(plan.source)
            context.require_lock(plan.source)
            with context.on(plan.source):
                reconcile(context)
                fence.lift(at.source, plan.id, revision=at.budget.revision)
                found = at_source(context)
            break
        except (NodeLocked, NodeLost, NodeUnavailable) as error:
            most = ends if isinstance(error, NodeLocked) else until
            elsewhere = error.node != plan.source and not isinstance(error, NodeLost)
            if elsewhere or time.monotonic() > most:
                raise
            logger.info("move %s: %s", plan.id, error.message)
            if not context.holds(plan.source) and not told:
                context.notice(f"lost node {plan.source}: waiting for it, to lift its fence")
                told = True
            time.sleep(_RESTART_POLL)
    ours = (MoveState.promoting, at.budget.revision + TO_PROMOTING)
    at.undone = found is not None and found.state.undoable
    if not at.undone and (found is None or (found.state, found.revision) != ours):
        at.pauses.abandon()


def disarm_source(at: Attempt) -> None:
    """End the source's guard, which is no longer needed."""
    context, source = at.context, at.plan.source
    session = context.sessions.pop((source, Use.guard), None)
    if session is None:
        return
    with context.on(source):
        at.source.execute("SELECT pg_terminate_backend(%s)", [session.info.backend_pid])
    session.close()


SUB_STEPS = (
    SubStep("undo: lift the fence",
            "restores the schemas' names on the source", lift_fence),
    SubStep("undo: resume", "resumes the aliases: clients are served from the source again",
            lambda at: _let_go(at.context, at.pauses), when=lambda at: at.undone),
    SubStep("undo: end the source's guard", "ends the guard in the source",
            disarm_source, when=lambda at: at.undone),
)  # fmt: skip


def _let_go(context: MoveContext, pauses: PausedPoolers) -> None:
    """Serve all clients as before, and report poolers that have stopped."""
    for error in pauses.let_go():
        context.notice(f"{error.message}; so nothing is paused there")


def _pause_ends(at: Attempt) -> float:
    """Return when the guards will have resumed what this process paused."""
    if at.pauses.guards_fire_at is not None:
        return at.pauses.guards_fire_at
    return time.monotonic() + at.plan.options.max_pause_s + GUARD_LAG_S


def at_source(context: MoveContext) -> Move | None:
    """Read the move on its source, over a new session if the old one broke."""
    with context.using(context.plan.source) as session:
        return journal.find(session, context.plan.id)


def state(context: MoveContext) -> str:
    """Return the move's state on its source."""
    found = at_source(context)
    return found.state.value if found else "unknown"
