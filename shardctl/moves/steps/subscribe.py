"""Follow, for a streamed move: a subscription that has come near its source."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING

from shardctl.meter import BYTES
from shardctl.moves import arrivals, held_wal, marks, structure
from shardctl.moves.step import Step
from shardctl.postgres.logical import subscription

if TYPE_CHECKING:
    from shardctl.moves.context import MoveContext

_SECONDS = 24 * 3600.0
_NEAR_S = 0.5
"""The time that a mark may take through the stream of a target that is near."""
_POLL_S = 0.02
_MARK = "follow"


class _Near:
    """That the target was near in this process."""


def probe(context: MoveContext) -> bool:
    """See whether the subscription is there, and was seen near its source by this process."""
    if context.past_cutover():
        return True
    plan = context.plan
    with context.on(plan.target):
        there = subscription.exists(context.session(plan.target), plan.slot)
    return there and context.knows(_Near)


def run(context: MoveContext) -> None:
    """Subscribe, and wait until a mark comes through quickly.

    Raises MarkNotSeen, StructureChanged.
    """
    plan = context.plan
    structure.require_same(context, plan.schemas)
    with context.on(plan.target):
        session = context.session(plan.target)
        if not subscription.exists(session, plan.slot):
            conninfo = subscription.conninfo(context.source, context.topology.database, plan.slot)
            subscription.create(session, plan.slot, conninfo, publication=plan.slot, slot=plan.slot)
    with held_wal.shown(context, follows=True) as shown:
        shown.expect(plan.target, held_wal.CATCHING_UP, 0, BYTES)
        _come_near(context)
    context.own(_Near, _Near)


def _come_near(context: MoveContext) -> None:
    until = time.monotonic() + _SECONDS
    while True:
        began, what = time.monotonic(), f"{_MARK} {secrets.token_hex(4)}"
        arrivals.put(context, marks.STEPS, what)
        try:
            arrivals.wait_for(context, marks.STEPS, what, deadline=until, poll_s=_POLL_S)
        except arrivals.MarkNotSeen:
            structure.require_same(context, context.plan.schemas)  # a stream stops at DDL
            raise
        if time.monotonic() - began < _NEAR_S:
            return


def undo(context: MoveContext) -> None:
    """Drop the subscription."""
    plan = context.plan
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
