"""The step `cutover`, and one process's attempt at it: the driver of its sub-steps.

`clone_cutover.py` and `stream_cutover.py` have these in their order.
"""

from __future__ import annotations

import gc
import logging
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from shardctl.access.fence import WritersLeft
from shardctl.errors import ShardctlError, Unfinished, together
from shardctl.moves import confirm, cutover, file, one_at_a_time, prediction, undoing
from shardctl.moves.paused_poolers import PausedPoolers
from shardctl.moves.preflight import check as preflight
from shardctl.moves.step import NotAbortable, Step
from shardctl.moves.sub_step import Budget, RoundTrips, deferred
from shardctl.postgres import standby
from shardctl.state import journal
from shardctl.state.journal import MoveState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from datetime import datetime

    from shardctl.moves.context import MoveContext
    from shardctl.moves.plan import MovePlan
    from shardctl.moves.sub_step import Cutover, Deferred, SubStep
    from shardctl.pgbouncer.guard import Question
    from shardctl.postgres.connection import Connection


Value = TypeVar("Value")

logger = logging.getLogger(__name__)

_SURE_S = 1.0
_ENDING_S = 1.0
"""The part of the budget reserved for terminating transactions that do not end."""


@dataclass
class Attempt:
    """One process's attempt at a cutover, and what its sub-steps pass to each other."""

    context: MoveContext
    pauses: PausedPoolers
    interrupt: Deferred
    cutover: Cutover
    began: bool = False
    """Whether this process began the cutover; otherwise it completes one that is decided."""
    round_trips: RoundTrips = field(default_factory=RoundTrips)
    """Round trips to the source, the target and the poolers, once measured."""
    tables: Sequence[int] = ()
    """The OIDs of the moved tables on the source, once read."""
    question: Question = field(init=False)
    """What the poolers' guards ask the target."""
    arming_s: float = 0.0
    """How long arming the guards may take without using up the budget."""
    budget: Budget = field(init=False)
    not_after: datetime = field(init=False)
    """The latest time for the fence, on the source's clock."""
    standbys: set[str] = field(default_factory=set)
    """The source's standbys that may be promoted, all that were seen in this attempt."""
    connected: str = ""
    """What changes when another may have come; empty where none counts."""
    behind: list[list[Any]] = field(default_factory=list)
    """What the source has seen behind the fence of a stream, in the message that put it up."""
    lsn: str = "0/0"
    """The position in the source's WAL that the target must have replayed."""
    claimed: bool = False
    """Whether the target owns the shards."""
    opened: bool = False
    """Whether clients can log in to the target."""
    sure_at: float = 0.0
    """When this process last had the target's lock, on the clock that counts a suspension."""
    undone: bool = False
    """Whether the source's journal says that the move is before its point of no return."""

    @property
    def plan(self) -> MovePlan:
        """The move's plan."""
        return self.context.plan

    @property
    def source(self) -> Connection:
        """The session with the source for work; raises NodeUnavailable."""
        return self.context.session(self.plan.source)

    @property
    def attempt(self) -> int:
        """The number of this cutover: no other of its move begins at the same revision."""
        return self.budget.revision

    @property
    def kept_s(self) -> float:
        """The seconds reserved for terminating transactions."""
        return _ENDING_S if self.plan.options.terminate else 0.0

    def without_writers(self, wait: Callable[[float], Value]) -> Value:
        """Return what `wait` does; with `--terminate`, end what it waits for too long.

        `wait` gets the seconds to keep back from its deadline for that. Raises its WritersLeft.
        """
        try:
            return wait(self.kept_s)
        except WritersLeft as left:
            if not self.plan.options.terminate or None in left.pids:
                raise
            for pid in left.pids:
                self.source.execute("SELECT pg_terminate_backend(%s)", [pid])
        return wait(0)

    def is_sure(self) -> None:
        """Remember that this process has the target's lock now."""
        self.sure_at = time.clock_gettime(time.CLOCK_BOOTTIME)

    def require_turn(self) -> None:
        """Check that the target's lock is still held, after a while; raises NodeLost.

        A command that takes it finishes this move, and others may follow: a process that wakes up
        late must change no file, pooler or schema any more. Within a second no command does that.
        """
        if time.clock_gettime(time.CLOCK_BOOTTIME) - self.sure_at > _SURE_S:
            self.context.require_lock(self.plan.target)
            self.is_sure()

    def do(self, rows: Sequence[SubStep]) -> None:
        """Run sub-steps up to the first that fails; raises what that raises."""
        for one in rows:
            if one.when is not None and not one.when(self):
                continue
            if one.may_stop:
                self.budget.require(one.name)
            with self.context.timeline.span(one.name):
                one.run(self)

    def do_all(self, rows: Sequence[SubStep]) -> dict[str, ShardctlError]:
        """Run all sub-steps, though some fail; return their errors by name.

        Raises NodeLost where another command may have taken over.
        """
        failed: dict[str, ShardctlError] = {}
        for one in rows:
            if not one.owed:
                self.require_turn()
            if one.after not in failed:
                try:
                    self.do([one])
                except ShardctlError as error:
                    failed[one.name] = error
        return failed


@contextmanager
def _at_work(context: MoveContext) -> Iterator[Attempt]:
    """Defer signals, and close all sessions with poolers afterwards."""
    with (
        deferred(context.notice) as interrupt,
        PausedPoolers(context.topology, context.plan, purpose=context.purpose) as pauses,
    ):
        yield Attempt(context, pauses, interrupt, prediction.cutover_of(context.plan))


def begin(context: MoveContext) -> None:
    """Change the ownership of the move's shards, sub-step by sub-step.

    The target must follow the source, this process must hold both nodes' locks, and the journal
    must be `reserved` or `undone`. Raises ShardctlError: before the point of no return with
    everything undone, after it with exit code 3, and then `complete` continues. Ctrl-C stops it
    where a sub-step `may_stop`, with Interrupted.
    """
    with _at_work(context) as at:
        at.began = True
        at.do(at.cutover.ready)
        at.budget = Budget(at, cutover.revision(context))
        gc.freeze()  # to look through all objects that there are takes longer than a whole fence
        try:
            at.do(at.cutover.undoable)
        except BaseException:
            undoing.take_back(at)
            _note_undone(at)
            raise
        at.do(at.cutover.decided)
        conclude(at)
        at.interrupt.require_none(
            f"move {at.plan.id}: interrupted after its cutover: node {at.plan.target} serves the "
            "shards"
        )


def complete(context: MoveContext) -> None:
    """Continue from the point of no return, however far another process came; repeatable.

    Clients of the poolers are served even if the source is unreachable. Raises Unfinished where no
    node's journal has the decision, and Interrupted when it is done.
    """
    plan = context.plan
    with _at_work(context) as at:
        if not plan.streams:  # whose target's server is an operator's
            standby.start(context.clone)
        context.lock(plan.target)
        context.session(plan.target)
        move = context.journal()
        if move is None or move.state.undoable:
            raise Unfinished(
                f"move {plan.id}: cannot continue without node {plan.source}: only its journal "
                "records whether the cutover was decided",
                hint=f"start node {plan.source}, then run `shardctl moves resume`",
            )
        at.claimed = move.state is not MoveState.promoting
        at.lsn = move.drained_to or at.lsn
        if not at.claimed:
            confirm.require_caught_up(context, at.lsn)
        at.do(at.cutover.decided)
        context.require_lock(plan.target)
        conclude(at)
        at.interrupt.require_none(f"move {plan.id}: interrupted after its cutover was completed")


def conclude(at: Attempt) -> None:
    """Serve the clients from the target; update poolers, nodes, the topology file and the journal.

    Repeatable. Raises what failed after trying the rest and comparing the rows: the target's
    snapshot ends with this process.
    """
    context, plan = at.context, at.plan
    failed = at.do_all(at.cutover.concluding)
    if failed:
        errors = list(failed.values())
        raise together([*errors, *_prove_now(context, errors)])
    before = context.journal()
    report = dict((before and before.report) or {})
    report |= _times(at, report) | {
        "pause_ms": context.timeline.pause_ms,
        "pooler_waits_ms": at.pauses.waits_ms,
    }
    report.pop(journal.UNDONE, None)
    for node in context.journal_nodes:
        with context.using(node) as session:
            journal.advance(session, plan.id, [MoveState.claimed], MoveState.routed, report=report)


def _times(at: Attempt, report: Mapping[str, Any]) -> dict[str, Any]:
    """Give what each sub-step took, and what was predicted for those that clients wait for.

    From what the rehearsal has measured, where there was one.
    """
    found = report.get(journal.REHEARSAL, {})
    expected = prediction.parts_ms(
        at.context.topology, at.plan, at.round_trips, len(at.tables), found.get("parts_ms")
    )
    return {
        "timeline": [[name, round(ms, 1)] for name, ms in at.context.timeline.spans],
        "predicted_timeline": [[name, round(ms, 1)] for name, ms in expected.items()],
        "predicted_pause_ms": found.get("predicted_pause_ms", round(sum(expected.values()), 1)),
    }


def _note_undone(at: Attempt) -> None:
    """Write into the source's journal how long each sub-step of an undone cutover took.

    The error that ended it is raised anyway, so one of this is only logged.
    """
    if not at.undone:
        return
    try:
        with at.context.on(at.plan.source):
            move = journal.find(at.source, at.plan.id)
            if move is not None and move.state.undoable:
                report = dict(move.report or {})
                report[journal.UNDONE] = _times(at, report)
                journal.note(at.source, move, report=report)
    except ShardctlError as error:
        logger.info("move %s: its sub-steps are not in the journal: %s", at.plan.id, error.message)


def _prove_now(context: MoveContext, failed: Sequence[ShardctlError]) -> list[ShardctlError]:
    """Compare the rows while the target's snapshot is held; return errors of the comparison.

    The comparison may take long, so a notice reports the earlier failures first.
    """
    if context.snapshot is None:
        return []
    for error in (part for one in failed for part in one.parts()):
        context.notice(f"{error.message}; shardctl compares the rows first, then stops")
    try:
        confirm.make(context)
    except ShardctlError as error:
        return [error]
    return []


def probe(context: MoveContext) -> bool:
    """Return whether the journal says that the poolers lead to the target."""
    move = context.journal()
    state = MoveState.reserved if move is None else move.state
    return state.claimed_by_target and state is not MoveState.claimed


def run(context: MoveContext) -> None:
    """Run the cutover when no other is under way, or complete what an earlier process left.

    Checks again what a fence does not stop, and whether the topology file can be written: the plan
    may be old. Raises PreflightRefused and others for that, or Problems for several.
    """
    if not context.past_cutover():
        # Guards of an earlier process may still run: undo its cutover and start again.
        undoing.call_off(context)
    if context.past_cutover():
        complete(context)
        return
    with one_at_a_time.turn(context):
        problems = [
            *preflight.again(context.topology, context.plan, "cutover", purpose=context.purpose),
            *file.problems(context.topology, context.plan),
        ]
        if problems:
            raise together(problems)
        begin(context)


def undo(context: MoveContext) -> None:
    """Lift the fence, serve the clients from the source; then take the locks that the rest needs.

    Raises NotAbortable past the point of no return, where the clone must not be undone, and
    NodeUnavailable, NodeLocked of a target that is needed.
    """
    if (before := context.journal()) is None:
        return
    if before.state.undoable:
        undoing.call_off(context)
    after = context.journal()
    if after is None or not after.state.undoable:
        raise NotAbortable(context.plan.id, after.state.value if after else "unknown")
    if not context.target_lost:
        for node in context.plan.locked:
            context.lock(node)


STEP = Step(
    "cutover", "fences the source, lets the target own the shards, routes the poolers",
    probe, run, undo,
)  # fmt: skip
