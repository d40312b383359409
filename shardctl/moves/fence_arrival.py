"""The fence's mark on the target, waited for while the source is looked at.

One message waits for the mark, puts the target's own on its disk and exports a snapshot, so that
neither its round trips nor its commit add to what the source needs.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from psycopg import sql

from shardctl.access import stream_fence
from shardctl.moves import marks
from shardctl.moves.context import Use
from shardctl.postgres import queries
from shardctl.postgres.sending import Sent

if TYPE_CHECKING:
    from shardctl.moves.context import MoveContext

QUERIES = queries.load("shardctl.moves", "fence_arrival.sql")

_LOOK_S = 1.0
"""How long the target waits before it answers that the mark has not come."""
_PUT, _EXPORTED = 2, -1
"""The statements of the message with the target's mark and with the snapshot."""


def rehearse(context: MoveContext) -> None:
    """Ask for a mark that never comes: what the session reads is in its caches then."""
    snapshot(context, marks.REHEARSED, deadline=time.monotonic())


def begin(context: MoveContext, attempt: int, *, deadline: float) -> None:
    """Let the target wait for the mark of an attempt, if it does not yet, until `deadline`.

    Its session for the snapshot is of no other use before `snapshot`.
    """
    if attempt not in context.awaited:
        context.awaited[attempt] = _send(context, attempt, deadline)


def snapshot(context: MoveContext, attempt: int, *, deadline: float) -> str | None:
    """Give the snapshot that the target has exported; None where it has not put its mark."""
    begin(context, attempt, deadline=deadline)
    sent, target = context.awaited.pop(attempt), context.plan.target
    with context.on(target):
        found = sent.rows()
        if not found[_PUT]:
            context.session(target, Use.snapshot).rollback()
            return None
        return found[_EXPORTED][0][0]


def _send(context: MoveContext, attempt: int, deadline: float) -> Sent:
    plan = context.plan
    seconds = max(0.0, min(_LOOK_S, deadline - time.monotonic()))
    message = QUERIES["await"].format(
        move=sql.Literal(plan.id),
        attempt=sql.Literal(attempt),
        fence=sql.Literal(stream_fence.MARK),
        arrived=sql.Literal(marks.ARRIVED),
        copied=sql.Literal(marks.COPIED),
        subscribed=sql.Literal(marks.SUBSCRIBED),
        subscription=sql.Literal(plan.slot),
        seconds=sql.Literal(seconds),
    )
    with context.on(plan.target):
        return Sent(context.session(plan.target, Use.snapshot), message)
