"""Marks on their way through the stream of a move: put on the source, awaited on the target."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from shardctl.errors import ShardctlError
from shardctl.moves import marks
from shardctl.moves.context import Use
from shardctl.postgres.logical import subscription

if TYPE_CHECKING:
    from shardctl.moves.context import MoveContext

_POLL_S = 0.001
_LOOK_S = 1.0


class MarkNotSeen(ShardctlError):
    """A mark that did not come through the stream in time."""

    def __init__(self, node: str, what: str, why: str) -> None:
        super().__init__(
            f"node {node}: the mark `{what}` of its source did not come through the stream in time"
            + (f": {why}" if why else ""),
            hint="see the log of that node for what keeps its subscription back, then "
            "`shardctl moves resume`",
        )


def put(context: MoveContext, attempt: int, what: str) -> None:
    """Put a mark into the stream."""
    plan = context.plan
    with context.on(plan.source):
        marks.put(context.session(plan.source), plan.id, what, attempt=attempt)


def wait_for(context: MoveContext, attempt: int, what: str, *, deadline: float) -> None:
    """Wait until a mark has come through the stream; raises MarkNotSeen.

    A worker that fails to apply a row fails again and again, so that is not waited for.
    """
    plan = context.plan
    look_at = time.monotonic() + _LOOK_S
    with context.on(plan.target):
        session = context.session(plan.target, Use.lock)
        while not marks.seen(session, plan.id, what, attempt=attempt):
            now = time.monotonic()
            if now > min(deadline, look_at):
                why = _trouble(context)
                if why or now > deadline:
                    raise MarkNotSeen(plan.target, what, why)
                look_at = now + _LOOK_S
            time.sleep(_POLL_S)


def _trouble(context: MoveContext) -> str:
    """Say what keeps the subscription from going on, as far as its node knows."""
    plan = context.plan
    session = context.session(plan.target)
    if context.source_lost or (source := context.open_session(plan.source, Use.work)) is None:
        return ""
    found = subscription.progress(source, session, plan.slot, plan.slot)
    if found is None:
        return "there is no subscription, or no slot"
    return (found.errors and subscription.apply_error(session, found.origin)) or ""
