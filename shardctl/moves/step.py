"""The steps of a move, and the functions that run or undo a list of them."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

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
        gone = "; if its target is destroyed, run `shardctl moves abort --target-destroyed`"
        super().__init__(
            f"move {move} is {state}: it is past the point of no return and cannot be aborted",
            hint="run `shardctl moves resume` to finish it"
            + (gone if state == "promoting" else ""),
        )


class Probe(Protocol):
    """Returns from servers and files, not from the journal alone, whether a step is done."""

    def __call__(self, context: MoveContext) -> bool:
        """Check without changing anything."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step; the log and the documentation show its name and sentence.

    `undo` takes back what `run` did, however far it came; None where nothing is to undo.
    """

    name: str
    sentence: str
    probe: Probe
    run: Callable[[MoveContext], None]
    undo: Callable[[MoveContext], None] | None = None


def drive(context: MoveContext, steps: Sequence[Step], on_step: Callable[[Step], None]) -> None:
    """Run every step that is not done, in order; call `on_step` as each begins.

    Resuming a move runs this again. Raises what a step raises, and Unfinished.
    """
    for step in steps:
        if step.probe(context):
            continue
        on_step(step)
        _record(context, step, "running")
        began = time.monotonic()
        try:
            context.require_locks()
            step.run(context)
            done = step.probe(context)
        except ShardctlError as error:
            _record(context, step, "failed", began=began, error=error.message)
            raise
        except KeyboardInterrupt:
            _record(context, step, "failed", began=began, error="interrupted")
            raise
        if not done:
            _record(context, step, "failed", began=began, error="not done, though no error")
            raise Unfinished(
                f"step {step.name} ended without an error, but is not done",
                hint="run `shardctl moves resume` to try again; this may be a bug",
            )
        _record(context, step, "done", began=began)


def undo(context: MoveContext, steps: Sequence[Step], on_step: Callable[[Step], None]) -> None:
    """Undo all steps, the last first; each undo is repeatable."""
    for step in reversed(steps):
        if step.undo is not None:
            on_step(step)
            step.undo(context)
            _record(context, step, "undone")


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
    for node in (context.plan.source, context.plan.target):
        session = context.open_session(node, Use.work)
        if session is None:
            continue
        try:
            with context.on(node), session.transaction():
                if journal.find(session, context.plan.id) is not None:
                    journal.record_step(
                        session, context.plan.id, step.name, state, took_ms=took_ms, error=error
                    )
        except ShardctlError as refused:
            # A standby accepts no writes, and the step itself reports a server that has died.
            logger.debug("move %s: not recorded on node %s: %s", context.plan.id, node, refused)
