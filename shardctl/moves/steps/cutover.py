"""Cutover: changes the ownership; see `moves.cutover` for its sub-steps."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from shardctl.errors import together
from shardctl.moves import attempt, file, undoing
from shardctl.moves.preflight import check as preflight
from shardctl.moves.step import NotAbortable, Step
from shardctl.state.journal import MoveState

if TYPE_CHECKING:
    from shardctl.moves.context import MoveContext


def probe(context: MoveContext) -> bool:
    """Return whether the journal says that the poolers lead to the target."""
    move = context.journal()
    return move is not None and move.state in (
        MoveState.routed, MoveState.unconfirmed, MoveState.done,
    )  # fmt: skip


def run(context: MoveContext) -> None:
    """Run the cutover, or complete what an earlier process left.

    Checks again what a fence does not stop, and whether the topology file can be written: the plan
    may be old. Raises PreflightRefused and others for that, or Problems for several.
    """
    if not context.past_cutover():
        # Guards of an earlier process may still run: undo its cutover and start again.
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
    """Lift the fence, serve the clients from the source, and restore its tables.

    Raises NotAbortable past the point of no return: then the clone must not be undone.
    """
    if (before := context.journal()) is None:
        return
    if before.state.undoable:
        undoing.call_off(context)
    after = context.journal()
    if after is None or not after.state.undoable:
        raise NotAbortable(context.plan.id, after.state.value if after else "unknown")


STEP = Step(
    "cutover", "fences the source, promotes the target, routes the poolers", probe, run, undo
)
STREAM_STEP = replace(STEP, sentence="fences the source, opens the target, routes the poolers")
