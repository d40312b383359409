"""Rehearse: the proof before the pause, on live data; see `moves.rehearsal`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.moves import marks, rehearsal, stream_origin, structure
from shardctl.moves.step import Step

if TYPE_CHECKING:
    from shardctl.moves.context import MoveContext

_DONE = "rehearsed"


def probe(context: MoveContext) -> bool:
    """Return whether this copy was rehearsed; the target forgets that with the copy."""
    if context.past_cutover():
        return True
    plan = context.plan
    with context.on(plan.target):
        return marks.seen(context.session(plan.target), plan.id, _DONE)


def run(context: MoveContext) -> None:
    """Compare all rows at one moment of the stream, and predict the pause.

    Raises StructureChanged, and what `stream_origin.require_copy` and `rehearsal.run` raise.
    """
    plan = context.plan
    structure.require_same(context, plan.schemas)
    _require_copy(context)
    try:
        rehearsal.run(context)
    except rehearsal.RehearsalRefused:
        # One that cannot go on from its copy is copied to again, whatever it lacks.
        _require_copy(context)
        raise
    with context.on(plan.target):
        marks.put(context.session(plan.target), plan.id, _DONE)


def _require_copy(context: MoveContext) -> None:
    target = context.plan.target
    with context.on(target):
        stream_origin.require_copy(context.session(target), context.plan)


STEP = Step(
    rehearsal.STEP,
    "compares every row at one moment of the stream while clients write, and measures what the "
    "cutover will take",
    probe,
    run,
)
