"""Cutover: ownership changes; see `moves.cutover` for the order within."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from shardctl.errors import together
from shardctl.moves import attempt, fences, file, undoing
from shardctl.moves.preflight import check as preflight
from shardctl.moves.step import NotAbortable, Step
from shardctl.state.journal import MoveState

if TYPE_CHECKING:
    from shardctl.moves.context import MoveContext


_SECONDS = 10.0


def probe(context: MoveContext) -> bool:
    """See whether the poolers lead to the target and everybody was told."""
    move = context.journal()
    return move is not None and move.state in (
        MoveState.routed, MoveState.unconfirmed, MoveState.done,
    )  # fmt: skip


def run(context: MoveContext) -> None:
    """Do it, or what an earlier process left of it.

    What the fence does not bind is looked for once more, and whether the topology file can be
    written: it is long ago that the plan was made. Raises PreflightRefused and others for that,
    or Problems of several.
    """
    if not context.past_cutover():
        # Whatever an earlier process did of it, its guards may be at work. Begin from the start.
        undoing.call_off(context)
    if context.past_cutover():
        attempt.complete(context)
        return
    problems = [
        *preflight.again(context.topology, context.plan, purpose=context.purpose),
        *file.problems(context.topology, context.plan),
    ]
    if problems:
        raise together(problems)
    attempt.run(context)


def undo(context: MoveContext) -> None:
    """Lift the fence and serve the clients from the source; let its tables be as they were.

    Raises NotAbortable where that cannot be any more: nothing of the clone may be undone then;
    and TriggersLeft.
    """
    if (before := context.journal()) is None:
        return
    if before.state.undoable:
        undoing.call_off(context)
    after = context.journal()
    if after is None or not after.state.undoable:
        raise NotAbortable(context.plan.id, after.state.value if after else "unknown")
    with context.on(context.plan.source):
        fences.of(context.plan).clear_away(context, deadline=time.monotonic() + _SECONDS)


STEP = Step(
    "cutover", "fences the source, promotes the target, routes the poolers", probe, run, undo
)
