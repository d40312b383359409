"""Follow: a target that has come near its source.

A clone is started as a standby; the target of a stream subscribes.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from shardctl import libpq
from shardctl.meter import BYTES
from shardctl.moves import ddl, marks, wal
from shardctl.moves.context import NodeRefused
from shardctl.moves.step import Step
from shardctl.postgres import standby
from shardctl.postgres.connection import NodeLost, NodeUnavailable
from shardctl.postgres.logical import subscription

if TYPE_CHECKING:
    from shardctl.moves.context import MoveContext


logger = logging.getLogger(__name__)

_NEAR_S = 24 * 3600.0
_ASK_AGAIN_S = 60.0
_POLL = 0.05


def probe(context: MoveContext) -> bool:
    """Return whether this process holds the target's lock, taken when replication caught up."""
    return context.past_cutover() or context.holds(context.plan.target)


def run(context: MoveContext) -> None:
    """Start the standby, wait until it streams and its lag is small, take its lock.

    While it catches up, replay breaks off every question that could hold it up, a login too:
    so it is asked again as long as its server runs, and that ends when the source knows what
    the standby looks at.
    """
    plan, clone = context.plan, context.clone
    standby.start(clone)
    deadline = time.monotonic() + _ASK_AGAIN_S
    with context.kept_progress() as progress:
        while not context.holds(plan.target):
            try:
                with context.using(plan.target) as session:
                    standby.require_closed(clone, session, context.topology.database.user)
                    source = context.session(plan.source)
                    standby.follow(clone, source, session, progress=progress)
                context.lock(plan.target)
            except (NodeUnavailable, NodeLost, NodeRefused, standby.NotFollowing) as error:
                if not clone.server.running() or time.monotonic() > deadline:
                    raise
                # Without the source there is nothing to follow.
                context.require_lock(plan.source)
                logger.debug("move %s: asking %s again: %s", plan.id, plan.target, error)
                context.forget(plan.target)
                time.sleep(_POLL)


STEP = Step("follow", "starts the standby and waits for replication to catch up", probe, run)


_MARK = "follow"


def is_near(context: MoveContext) -> bool:
    """See whether the subscription is there, and was seen near its source by this process."""
    if context.past_cutover():
        return True
    plan = context.plan
    with context.using(plan.target) as session:
        there = subscription.exists(session, plan.slot) and not marks.is_dropped(session, plan)
    return there and context.is_near


def subscribe(context: MoveContext) -> None:
    """Subscribe, and wait until a mark comes through quickly.

    Raises MarkNotSeen, StructureChanged, subscription_gone.
    """
    plan = context.plan
    ddl.require_same(context, plan.schemas)  # the stream of an altered table would stop
    with context.using(plan.target) as session:
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
    with context.using(plan.target) as session:
        if subscription.exists(session, plan.slot):
            subscription.reconnect(session, plan.slot, _conninfo(context))


def _conninfo(context: MoveContext) -> str:
    """Give how the subscription logs in to the source: as a role that is made, or as the owner."""
    plan, database, login = context.plan, context.topology.database, dict[str, str]()
    if subscription.needs_login(context.session(plan.target)):
        with context.using(plan.source) as session:
            login = subscription.make_login(session, plan.slot)
    return libpq.for_replication(context.source, database, plan.slot, dbname=database.name, **login)


def unsubscribe(context: MoveContext) -> None:
    """Drop the subscription, and the role by which it logs in."""
    plan = context.plan
    with context.using(plan.source) as session:
        subscription.drop_login(session, plan.slot)
    if context.target_lost:
        return
    with context.using(plan.target) as session:
        subscription.drop(session, plan.slot)


STREAM_STEP = Step(
    "follow",
    "subscribes to the source and waits for replication to catch up",
    is_near,
    subscribe,
    unsubscribe,
)
