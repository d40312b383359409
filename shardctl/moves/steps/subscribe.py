"""Follow, for a streamed move: a subscription that has come near its source."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.meter import BYTES
from shardctl.moves import arrivals, held_wal, stream_origin, structure
from shardctl.moves.step import Step
from shardctl.postgres.logical import stream_login, subscription

if TYPE_CHECKING:
    from shardctl.moves.context import MoveContext

_SECONDS = 24 * 3600.0
_MARK = "follow"


def probe(context: MoveContext) -> bool:
    """See whether the subscription is there, and was seen near its source by this process."""
    if context.past_cutover():
        return True
    plan = context.plan
    with context.on(plan.target):
        session = context.session(plan.target)
        there = subscription.exists(session, plan.slot)
        dropped = stream_origin.is_dropped(session, plan)
    return there and not dropped and context.is_near


def run(context: MoveContext) -> None:
    """Subscribe, and wait until a mark comes through quickly.

    Raises MarkNotSeen, StructureChanged, subscription_gone.
    """
    plan = context.plan
    structure.require_same(context, plan.schemas)  # the stream of an altered table would stop
    with context.on(plan.target):
        session = context.session(plan.target)
        stream_origin.require_subscription(session, plan)
        if not subscription.exists(session, plan.slot):
            conninfo = _conninfo(context)
            subscription.create(session, plan.slot, conninfo, publication=plan.slot, slot=plan.slot)
        if plan.reverses is not None:
            # What came to the source by the move that is reversed must not come back.
            subscription.begin_at(session, plan.slot, plan.reverses.lsn)
        stream_origin.begin(session, plan)
    with held_wal.shown(context, follows=True) as shown:
        shown.expect(plan.target, held_wal.CATCHING_UP, 0, BYTES)
        arrivals.come_near(context, _MARK, seconds=_SECONDS)
    context.is_near = True


def reconnect(context: MoveContext) -> None:
    """Let the subscription, if it is there, follow the source to where the topology has it now."""
    plan = context.plan
    with context.on(plan.target):
        session = context.session(plan.target)
        if subscription.exists(session, plan.slot):
            subscription.reconnect(session, plan.slot, _conninfo(context))


def _conninfo(context: MoveContext) -> str:
    login = _login(context) if stream_login.is_needed(context.session(context.plan.target)) else {}
    return subscription.conninfo(
        context.source, context.topology.database, context.plan.slot, **login
    )


def _login(context: MoveContext) -> dict[str, str]:
    """Make the role by which a subscription logs in if its owner is not a superuser."""
    with context.on(context.plan.source):
        return stream_login.make(context.session(context.plan.source), context.plan.slot)


def undo(context: MoveContext) -> None:
    """Drop the subscription, and the role by which it logs in."""
    plan = context.plan
    with context.on(plan.source):
        stream_login.drop(context.session(plan.source), plan.slot)
    if context.target_lost:
        return
    with context.on(plan.target):
        subscription.drop(context.session(plan.target), plan.slot)


STEP = Step(
    "follow",
    "subscribes to the source and waits for replication to catch up",
    probe,
    run,
    undo,
    leaves=lambda plan: f"subscription {plan.slot}",
)
