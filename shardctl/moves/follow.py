"""Follow: a target that has come near its source.

A clone is started as a standby; the target of a stream subscribes.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from shardctl import libpq
from shardctl.errors import ShardctlError
from shardctl.meter import BYTES
from shardctl.moves import ddl, marks, wal
from shardctl.moves.context import NodeRefused
from shardctl.moves.step import Step
from shardctl.postgres import slots, standby
from shardctl.postgres.connection import NodeLost, NodeUnavailable
from shardctl.postgres.logical import subscription

if TYPE_CHECKING:
    from shardctl.fanout import Progress
    from shardctl.moves.context import MoveContext


logger = logging.getLogger(__name__)

_ASK_AGAIN_S = 60.0
_POLL = 0.05
_FEEDBACK = "SELECT xmin IS NOT NULL FROM pg_replication_slots WHERE slot_name = %s"


def probe(context: MoveContext) -> bool:
    """Return whether this process holds the target's lock, taken when replication caught up."""
    return context.past_cutover() or context.holds(context.plan.target)


def run(context: MoveContext) -> None:
    """Start the standby, wait until it streams and its lag is small, take its lock.

    While it catches up, replay breaks off every question that could hold it up, a login too:
    so it is asked again as long as its server runs, and that ends when the source knows what
    the standby looks at.
    """
    standby.start(context.clone)
    with context.kept_progress() as progress:
        _catch_up(context, progress)


def _catch_up(context: MoveContext, progress: Progress) -> None:
    target, clone = context.plan.target, context.clone
    deadline = time.monotonic() + _ASK_AGAIN_S
    while True:
        try:
            _follow(context, progress)
        except (NodeUnavailable, NodeLost, NodeRefused, standby.NotFollowing) as error:
            if not clone.server.running() or time.monotonic() > deadline:
                raise
            context.require_lock(
                context.plan.source
            )  # without the source there is nothing to follow
            logger.debug("move %s: asking node %s again: %s", context.plan.id, target, error)
            context.forget(target)
            time.sleep(_POLL)
        else:
            return


def _follow(context: MoveContext, progress: Progress) -> None:
    plan, clone = context.plan, context.clone
    with context.on(plan.target):
        standby.follow(
            clone,
            context.session(plan.source),
            context.session(plan.target),
            progress=progress,
        )
        standby.require_closed(clone, context.session(plan.target), context.topology.database.user)
    progress.waits(plan.target, "feedback of the standby")
    _wait_for_feedback(context)
    progress.waits(plan.target, None)
    context.lock(plan.target)


def _wait_for_feedback(context: MoveContext) -> None:
    """Wait until hot standby feedback reaches the source."""
    session = context.session(context.plan.source)
    deadline = time.monotonic() + _ASK_AGAIN_S
    with context.on(context.plan.source):
        while True:
            row = session.execute(_FEEDBACK, [context.plan.slot]).fetchone()
            if row is not None and row[0]:
                return
            slots.require(session, context.plan.target, context.plan.slot)
            if time.monotonic() > deadline:
                raise ShardctlError(
                    f"node {context.plan.target}: node {context.plan.source} has received no hot "
                    f"standby feedback from it for {_ASK_AGAIN_S:g} s",
                    hint="check the clone's log for why it does not stream, then run `shardctl "
                    "moves resume`",
                )
            time.sleep(_POLL)


STEP = Step("follow", "starts the standby and waits for replication to catch up", probe, run)


_NEAR_S = 24 * 3600.0
_MARK = "follow"


def is_near(context: MoveContext) -> bool:
    """See whether the subscription is there, and was seen near its source by this process."""
    if context.past_cutover():
        return True
    plan = context.plan
    with context.on(plan.target):
        session = context.session(plan.target)
        there = subscription.exists(session, plan.slot)
        dropped = marks.is_dropped(session, plan)
    return there and not dropped and context.is_near


def subscribe(context: MoveContext) -> None:
    """Subscribe, and wait until a mark comes through quickly.

    Raises MarkNotSeen, StructureChanged, subscription_gone.
    """
    plan = context.plan
    ddl.require_same(context, plan.schemas)  # the stream of an altered table would stop
    with context.on(plan.target):
        session = context.session(plan.target)
        marks.require_subscription(session, plan)
        if not subscription.exists(session, plan.slot):
            subscription.create(session, plan.slot, _conninfo(context))
        if plan.reverses is not None:
            # What came to the source by the move that is reversed must not come back.
            subscription.begin_at(session, plan.slot, plan.reverses.lsn)
        marks.begin(session, plan)
    with wal.shown(context, follows=True) as shown:
        shown.expect(plan.target, wal.CATCHING_UP, 0, BYTES)
        marks.come_near(context, _MARK, seconds=_NEAR_S)
    context.is_near = True


def reconnect(context: MoveContext) -> None:
    """Let the subscription, if it is there, follow the source to where the topology has it now."""
    plan = context.plan
    with context.on(plan.target):
        session = context.session(plan.target)
        if subscription.exists(session, plan.slot):
            subscription.reconnect(session, plan.slot, _conninfo(context))


def _conninfo(context: MoveContext) -> str:
    database, name = context.topology.database, context.plan.slot
    login = (
        _login(context) if subscription.needs_login(context.session(context.plan.target)) else {}
    )
    return libpq.for_replication(context.source, database, name, dbname=database.name, **login)


def _login(context: MoveContext) -> dict[str, str]:
    """Make the role by which a subscription logs in if its owner is not a superuser."""
    with context.on(context.plan.source):
        return subscription.make_login(context.session(context.plan.source), context.plan.slot)


def unsubscribe(context: MoveContext) -> None:
    """Drop the subscription, and the role by which it logs in."""
    plan = context.plan
    with context.on(plan.source):
        subscription.drop_login(context.session(plan.source), plan.slot)
    if context.target_lost:
        return
    with context.on(plan.target):
        subscription.drop(context.session(plan.target), plan.slot)


STREAM_STEP = Step(
    "follow",
    "subscribes to the source and waits for replication to catch up",
    is_near,
    subscribe,
    unsubscribe,
)
