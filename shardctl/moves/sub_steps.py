"""What the sub-steps of a cutover do until the target owns the shards; see `cutover.py`."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import psycopg

from shardctl.access import fence
from shardctl.errors import Unfinished
from shardctl.moves import asking, undoing
from shardctl.moves import source_guard as guard
from shardctl.moves.distance import Distance, shortest_ms
from shardctl.moves.gate import PauseFailed
from shardctl.pgbouncer.guard import Question
from shardctl.postgres import replay
from shardctl.state import journal
from shardctl.state.journal import MoveState

if TYPE_CHECKING:
    from shardctl.moves.attempt import Attempt
    from shardctl.moves.context import MoveContext

_FAIR_S = 0.1
"""How long transactions have at least to end, however little of the budget is left."""
_ARMING_S = 3.0
"""How long arming the guards on poolers' hosts may take without costing the budget something."""
_GUARDS_S = 5.0
"""How long the guards on poolers' hosts may take to ask the target, and to route."""


class NotPromoting(Unfinished):
    """The move was undone, by another process or a guard, when it was to be decided."""

    def __init__(self, move: str, state: str) -> None:
        super().__init__(
            f"move {move} is {state}: it was called off before the point of no return",
            hint="`shardctl moves resume` tries again",
        )


def revision(context: MoveContext) -> int:
    """Give the journal's revision before the fence; raises NotPromoting."""
    found = undoing.at_source(context)
    if found is None or not found.state.undoable:
        raise NotPromoting(context.plan.id, found.state if found else "unknown")
    return found.revision


def log_in(at: Attempt) -> None:
    """Open all sessions: a login takes longer than all that is asked there afterwards."""
    context, plan = at.context, at.plan
    at.gates.open()
    at.handover.prepare(context)
    with context.on(plan.source):
        guard.session(context)
        at.fence.prepare(context)
    at.distance = _distance(at)
    at.require_time()


def rehearse_guards(at: Attempt) -> None:
    """Ask the target as a guard would; arming guards takes about as long as this."""
    began = time.monotonic()
    at.question = question = _question(at.context)
    replay.again(lambda: at.gates.rehearse(question))
    # On far hosts that may be longer than a whole budget.
    at.arming_s = min(2 * (time.monotonic() - began), _ARMING_S)


def arm_guards(at: Attempt) -> None:
    """Arm the guards on the poolers' hosts, then the source's, with which the budget begins."""
    budget, began = at.budget, time.monotonic()
    after_s = at.plan.options.max_pause_s + at.arming_s + undoing.GUARD_LAG_S
    at.gates.arm(after_s=after_s, question=at.question)
    at.gates.hold_files(seconds=after_s)
    # Those guards fire after the source's, so a budget that begins late is shorter.
    budget.begin(min(time.monotonic(), began + at.arming_s))
    guard.arm(at, guards_s=at.arming_s + undoing.GUARD_LAG_S + _GUARDS_S)
    with at.context.on(at.plan.source):
        at.not_after = fence.not_after(at.source, budget.latest("drain"))


def pause(at: Attempt) -> None:
    """Hold all aliases, as long as the locks are ours."""
    at.context.require_locks()  # a process that took them has ended our guards, too
    hold(at, at.budget.latest("fence"))


def hold(at: Attempt, until: float) -> None:
    """Hold all aliases; with `--terminate`, transactions that go on are ended.

    They have until a time of the monotonic clock to end. Raises PauseFailed, PauseLost.
    """
    fair_s = _FAIR_S + at.distance.pooler / 1000

    def left(kept_s: float) -> float:
        return max(fair_s, until - kept_s - time.monotonic())

    try:
        at.gates.hold(seconds=left(at.kept_s))
    except PauseFailed as error:
        if not at.plan.options.terminate:
            raise
        with at.context.on(at.plan.source):
            for pid in at.gates.busy(error.waiting):
                at.source.execute("SELECT pg_terminate_backend(%s)", [pid])
        at.gates.open()
        at.gates.hold(seconds=left(0))


def put_up_fence(at: Attempt) -> None:
    """Put the fence up, and commit `fenced`."""
    at.fencing_at = time.monotonic()
    with at.context.on(at.plan.source):
        at.fence.put_up(at)


def drain(at: Attempt) -> None:
    """Wait for those who write behind the fence all the same."""
    with at.context.on(at.plan.source):
        at.fence.drain(at)


def mark(at: Attempt) -> None:
    """Commit `drained`, and note what the target must have; raises NotPromoting."""
    with at.context.on(at.plan.source):
        lsn = journal.mark_drained(at.source, at.plan.id, revision=at.budget.revision + 1)
    if lsn is None:
        raise NotPromoting(at.plan.id, undoing.state(at.context))
    at.lsn = lsn


def catch_up(at: Attempt) -> None:
    """Wait until the target has that."""
    at.handover.catch_up(at.context, at.lsn, deadline=at.budget.latest("snapshot"))


def look_again(at: Attempt) -> None:
    """See that the fence holds, and that the source's lock is ours."""
    with at.context.on(at.plan.source):
        at.fence.look_again(at)


def decide(at: Attempt) -> None:
    """Commit `promoting` on the source, if it is still drained; raises NotPromoting."""
    context, plan = at.context, at.plan
    with context.on(plan.source):
        try:
            decided = journal.advance(
                at.source,
                plan.id,
                [MoveState.drained],
                MoveState.promoting,
                # Of this attempt, and not of another operator's after it.
                revision=at.budget.revision + 2,
                drained_to=at.lsn,
            )
        except psycopg.OperationalError:
            # The answer was lost, and perhaps not the commit, which may even be to come: so it
            # is undone, and the one of the two that the source has taken first counts.
            fence.lift(at.source, plan.id, revision=at.budget.revision)
            decided = undoing.state(context) == MoveState.promoting
    if not decided:
        raise NotPromoting(plan.id, undoing.state(context))


def take_over(at: Attempt) -> None:
    """Let the target take writes."""
    at.handover.take_over(at.context)


def claim(at: Attempt) -> None:
    """Make the target the owner."""
    at.opened = at.handover.claim(at.context, at.lsn)


def _distance(at: Attempt) -> Distance:
    """Measure the round trips to all who will be asked."""
    source, target = at.plan.source, at.plan.target
    took = {}
    for node in (source, target):
        ask = partial(at.context.session(node).execute, "SELECT 1")
        with at.context.on(node):
            took[node] = shortest_ms(partial(replay.again, ask))
    return Distance.of(source=took[source], target=took[target], pooler=at.gates.distance_ms())


def _question(context: MoveContext) -> Question:
    """Ask the target whether it serves the shards: what a pooler's guard goes by."""
    dsn = asking.dsn(context.target, context.topology.database)
    return Question(dsn, context.method.handover.serves(context).as_string())
