"""The steps of a move, and the functions that run or undo a list of them."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardctl.errors import ShardctlError, Unfinished
from shardctl.moves.context import Use
from shardctl.state import journal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardctl.moves.context import MoveContext

logger = logging.getLogger(__name__)


class NotAbortable(ShardctlError):
    """A move that can only be finished."""

    def __init__(self, move: str, state: str) -> None:
        super().__init__(
            f"move {move} is {state}: it is past the point of no return and cannot be aborted",
            hint="run `shardctl moves resume` to finish it; if its target is destroyed, see "
            "docs/operations/failures.md",
        )


@dataclass(frozen=True, slots=True)
class Step:
    """One step; the log and the documentation show its name and sentence.

    `probe` tells by servers and files, not by the journal alone, whether it is done, and changes
    nothing. `undo` takes back what `run` did, however far it came; None where nothing is to undo.
    """

    name: str
    sentence: str
    probe: Callable[[MoveContext], bool]
    run: Callable[[MoveContext], None]
    undo: Callable[[MoveContext], None] | None = None


def drive(context: MoveContext, steps: Sequence[Step]) -> None:
    """Run every step that is not done, in order; tell the operator as each begins.

    Resuming a move runs this again. Raises what a step raises, and Unfinished.
    """
    for step in steps:
        if step.probe(context):
            continue
        context.notice(f"move {context.plan.id}: {step.name}: {step.sentence}")
        _record(context, step, "running")
        began = time.monotonic()
        try:
            context.require_locks()
            step.run(context)
            if not step.probe(context):
                raise Unfinished(
                    f"step {step.name} ended without an error, but is not done",
                    hint="run `shardctl moves resume` to try again; this may be a bug",
                )
        except (ShardctlError, KeyboardInterrupt) as error:
            why = error.message if isinstance(error, ShardctlError) else "interrupted"
            _record(context, step, "failed", began=began, error=why)
            raise
        _record(context, step, "done", began=began)


def undo(context: MoveContext, steps: Sequence[Step]) -> None:
    """Undo all steps, the last first; each undo is repeatable. Name those that began.

    Raises what a step's undo raises, such as NodeUnavailable of a target that is needed by then.
    """
    move = context.plan.id
    with context.using(context.plan.source) as session:
        recorded = journal.steps(session)[move]
    begun = {steps[0].name, *(one.step for one in recorded if one.state != "undone")}
    for step in reversed(steps):
        if step.undo is not None:
            if step.name in begun:
                context.notice(f"move {move}: undo {step.name}")
            step.undo(context)
            # The last step that was not undone is where the move ended.
            logger.info("move %s: step %s: undone", move, step.name)
            _in_journals(context, step, journal.record_undone)


def _record(
    context: MoveContext,
    step: Step,
    state: str,
    *,
    began: float | None = None,
    error: str | None = None,
) -> None:
    """Write the step into the journals that can be written; nothing depends on it."""
    took_ms = None if began is None else (time.monotonic() - began) * 1000
    logger.info("move %s: step %s: %s %s", context.plan.id, step.name, state, error or "")
    _in_journals(context, step, journal.record_step, state=state, took_ms=took_ms, error=error)


def _in_journals(
    context: MoveContext, step: Step, write: Callable[..., None], **given: Any
) -> None:
    """Write something about a step into the journals that can be written."""
    for node in (context.plan.source, context.plan.target):
        session = context.open_session(node, Use.work)
        if session is None:
            continue
        try:
            with context.on(node), session.transaction():
                if journal.find(session, context.plan.id) is not None:
                    write(session, context.plan.id, step.name, **given)
        except ShardctlError as refused:
            # A standby accepts no writes, and the step itself reports a server that has died.
            logger.debug("move %s: not recorded on node %s: %s", context.plan.id, node, refused)
