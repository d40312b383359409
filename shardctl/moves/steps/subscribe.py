"""Follow, for a streamed move: a subscription that has come near its source."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING

from shardctl.moves import marks, stream, structure
from shardctl.moves.step import Step
from shardctl.moves.stream import MarkNotSeen
from shardctl.postgres.logical import subscription

if TYPE_CHECKING:
    from shardctl.moves.context import MoveContext

_SECONDS = 24 * 3600.0
_NEAR_S = 0.5
"""The time that a mark may take through the stream of a target that is near."""
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
    until = time.monotonic() + _SECONDS
    while True:
        began, what = time.monotonic(), f"{_MARK} {secrets.token_hex(4)}"
        stream.mark(context, marks.STEPS, what)
        try:
            stream.await_mark(context, marks.STEPS, what, deadline=until)
        except MarkNotSeen:
            structure.require_same(context, plan.schemas)  # a stream stops at DDL
            raise
        if time.monotonic() - began < _NEAR_S:
            break
    context.own(_Near, _Near)


def undo(context: MoveContext) -> None:
    """Drop the subscription."""
    plan = context.plan
    if context.target_lost:
        return
    with context.on(plan.target):
        subscription.drop(context.session(plan.target), plan.slot)


STEP = Step(
    "follow", "subscribes to the source and waits for replication to catch up", probe, run, undo
)
