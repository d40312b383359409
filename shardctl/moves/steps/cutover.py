"""Cutover: ownership changes; see `moves.cutover` for the order within."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from shardctl.access import write_fence
from shardctl.errors import together
from shardctl.moves import cutover, file, handover, undoing
from shardctl.moves.preflight import check as preflight
from shardctl.moves.step import NotAbortable, Step
from shardctl.state.journal import MoveState

if TYPE_CHECKING:
    from shardctl.moves.world import World


_SECONDS = 10.0


def probe(world: World) -> bool:
    """See whether the poolers lead to the target and everybody was told."""
    move = world.journal()
    return move is not None and move.state in (
        MoveState.routed, MoveState.unconfirmed, MoveState.done,
    )  # fmt: skip


def run(world: World) -> None:
    """Do it, or what an earlier process left of it.

    What the fence does not bind is looked for once more, and whether the topology file can be
    written: it is long ago that the plan was made. Raises SourceUnfit, FileUnfit and others for
    that, or Problems of several.
    """
    if not world.past_cutover():
        # Whatever an earlier process did of it, its guards may be at work. Begin from the start.
        undoing.call_off(world)
    if world.past_cutover():
        handover.complete(world)
        return
    problems = [
        *preflight.again(world.topology, world.plan, purpose=world.purpose),
        *file.problems(world.topology, world.plan),
    ]
    if problems:
        raise together(problems)
    cutover.run(world)


def undo(world: World) -> None:
    """Lift the fence and serve the clients from the source; let its tables be as they were.

    Raises NotAbortable where that cannot be any more: nothing of the clone may be undone then;
    and TriggersLeft.
    """
    if (before := world.journal()) is None:
        return
    if before.state.undoable:
        undoing.call_off(world)
    after = world.journal()
    if after is None or not after.state.undoable:
        raise NotAbortable(world.plan.id, after.state.value if after else "unknown")
    plan = world.plan
    if plan.options.read_only:
        with world.on(plan.source):
            session, deadline = world.session(plan.source), time.monotonic() + _SECONDS
            write_fence.clear_away(session, plan.source, plan.id, plan.schemas, deadline=deadline)


STEP = Step(
    "cutover", "fences the source, promotes the target, routes the poolers", probe, run, undo
)
