"""Marks on their way through the stream of a move: put on the source, awaited on the target."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING

from shardctl.errors import ShardctlError
from shardctl.moves import marks, structure
from shardctl.moves.context import Use
from shardctl.moves.stream_watch import Watch

if TYPE_CHECKING:
    from shardctl.moves.context import MoveContext

_POLL_S = 0.001
_LOOK_S = 1.0
_NEAR_S = 0.5
"""The time that a mark may take through the stream of a target that is near."""
_NEAR_POLL_S = 0.02


class MarkNotSeen(ShardctlError):
    """A mark that did not come through the stream in time."""

    def __init__(self, node: str, what: str, why: str) -> None:
        super().__init__(
            f"node {node}: replication from the source did not reach mark `{what}` in time"
            + (f": {why}" if why else ""),
            hint="check the log of that node for why its subscription is behind, then run "
            "`shardctl moves resume`",
        )


def put(context: MoveContext, attempt: int, what: str) -> None:
    """Put a mark into the stream."""
    plan = context.plan
    with context.on(plan.source):
        marks.put(context.session(plan.source), plan.id, what, attempt=attempt)


def wait_for(
    context: MoveContext, attempt: int, what: str, *, deadline: float, poll_s: float = _POLL_S
) -> None:
    """Wait until a mark has come through the stream; raises MarkNotSeen, slot_gone.

    A worker that fails to apply a row fails again and again, so that is not waited for.
    """
    plan = context.plan
    look_at, watch = time.monotonic() + _LOOK_S, Watch(context)
    with context.on(plan.target):
        session = context.session(plan.target, Use.lock)
        while not marks.seen(session, plan.id, what, attempt=attempt):
            now = time.monotonic()
            if now > min(deadline, look_at):
                why = watch.trouble()
                if why or now > deadline:
                    raise MarkNotSeen(plan.target, what, why or watch.last_error())
                look_at = now + _LOOK_S
            time.sleep(poll_s)


def come_near(context: MoveContext, what: str, *, seconds: float) -> str:
    """Wait until a mark comes through quickly; return its name, which begins with `what`.

    Raises MarkNotSeen, StructureChanged.
    """
    until = time.monotonic() + seconds
    while True:
        began, mark = time.monotonic(), f"{what} {secrets.token_hex(4)}"
        put(context, marks.STEPS, mark)
        try:
            wait_for(context, marks.STEPS, mark, deadline=until, poll_s=_NEAR_POLL_S)
        except MarkNotSeen:
            structure.require_same(context, context.plan.schemas)  # a stream stops at DDL
            raise
        if time.monotonic() - began < _NEAR_S:
            return mark
