"""What a step of a move is, and the runner that drives a list of them."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from shardctl.errors import ShardctlError
from shardctl.state import journal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardctl.moves.world import World

logger = logging.getLogger(__name__)


class StepIncomplete(ShardctlError):
    """A step that ran without an error and did not bring the world to where it should be."""

    exit_code = 3

    def __init__(self, step: str) -> None:
        super().__init__(
            f"step {step} ran, and the world is not as it should be after it",
            hint="`shardctl moves resume` tries again; this may be a bug",
        )


class NotAbortable(ShardctlError):
    """A move that can only go on."""

    def __init__(self, move: str, state: str) -> None:
        gone = "; if its target is no more, `shardctl moves abort --target-destroyed`"
        super().__init__(
            f"move {move} is {state}: past the point of no return it only goes forward",
            hint="`shardctl moves resume` finishes it" + (gone if state == "promoting" else ""),
        )


class Probe(Protocol):
    """Tell from the world, not from the journal, whether a step is done."""

    def __call__(self, world: World) -> bool:
        """Look and change nothing."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step: its name and sentence are what is logged, and what the documentation shows.

    `undo` takes back what `run` did, however far it came; None where nothing can be undone.
    """

    name: str
    sentence: str
    probe: Probe
    run: Callable[[World], None]
    undo: Callable[[World], None] | None = None


def drive(world: World, steps: Sequence[Step], told: Callable[[Step], None]) -> None:
    """Do every step that is not done already, in order; `told` is called as each begins.

    Resuming is doing this again. Raises what a step raises, and StepIncomplete.
    """
    for step in steps:
        if step.probe(world):
            continue
        told(step)
        _record(world, step, "running")
        began = time.monotonic()
        try:
            world.require_locks()
            step.run(world)
            done = step.probe(world)
        except ShardctlError as error:
            _record(world, step, "failed", began=began, error=error.message)
            raise
        except KeyboardInterrupt:
            _record(world, step, "failed", began=began, error="interrupted")
            raise
        if not done:
            _record(world, step, "failed", began=began, error="not as it should be afterwards")
            raise StepIncomplete(step.name)
        _record(world, step, "done", began=began)


def undo(world: World, steps: Sequence[Step], told: Callable[[Step], None]) -> None:
    """Take back all steps, the last first; each undo is repeatable."""
    for step in reversed(steps):
        if step.undo is not None:
            told(step)
            step.undo(world)
            _record(world, step, "undone")


def _record(
    world: World,
    step: Step,
    state: str,
    *,
    began: float | None = None,
    error: str | None = None,
) -> None:
    """Write the step into the journal, where there is one to write to: nothing depends on it."""
    took_ms = None if began is None else (time.monotonic() - began) * 1000
    logger.info("move %s: step %s: %s %s", world.plan.id, step.name, state, error or "")
    for node in (world.plan.source, world.plan.target):
        session = world.sessions.get(f"{node}/work")
        if session is None or session.closed:
            continue
        try:
            with world.on(node), session.transaction():
                if journal.find(session, world.plan.id) is not None:
                    journal.record_step(
                        session, world.plan.id, step.name, state, took_ms=took_ms, error=error
                    )
        except ShardctlError as refused:
            # A standby takes no writes, and a server that has died is told by the step itself.
            logger.debug("move %s: not recorded on node %s: %s", world.plan.id, node, refused)
