"""The sub-steps of a cutover until the target owns the shards; see `cutover.py`."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import psycopg

from shardctl import fanout
from shardctl.access import fence
from shardctl.errors import Unfinished
from shardctl.moves import blocks, cross_schema, paused_pooler, promotion, stream, undoing
from shardctl.moves import plan as planning
from shardctl.moves import source_guard as guard
from shardctl.moves.paused_pooler import PauseFailed
from shardctl.moves.sub_step import RoundTrips, shortest_ms
from shardctl.pgbouncer.guard import Question
from shardctl.postgres import replay
from shardctl.state import journal
from shardctl.state.journal import MoveState

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardctl.moves.attempt import Attempt
    from shardctl.moves.context import MoveContext

_FAIR_S = 0.1
"""The least time that transactions get to end, however little of the budget is left."""
_ARMING_S = 3.0
"""How long arming the guards on poolers' hosts may take without using up the budget."""


class NotPromoting(Unfinished):
    """A move that another process or a guard undid before the decision."""

    def __init__(self, move: str, state: str) -> None:
        super().__init__(
            f"move {move} is {state}: a guard or another process undid its cutover before the "
            "point of no return",
            hint="run `shardctl moves resume` to try again",
        )


def revision(context: MoveContext) -> int:
    """Return the journal's revision before the fence; raises NotPromoting."""
    found = undoing.at_source(context)
    if found is None or not found.state.undoable:
        raise NotPromoting(context.plan.id, found.state if found else "unknown")
    return found.revision


def log_in(at: Attempt) -> None:
    """Open all sessions: a login takes longer than all later queries."""
    context, plan = at.context, at.plan
    at.pauses.open()
    handover = stream if plan.streams else promotion
    handover.prepare(context)
    with context.on(plan.source):
        guard.session(context)
        at.tables = fence.oids(at.source, plan.schemas)
    at.round_trips = _round_trips(at)


def rehearse_guards(at: Attempt) -> None:
    """Query the target as a guard would; arming guards takes about as long as this."""
    began = time.monotonic()
    at.question = question = _question(at.context)
    replay.again(lambda: at.pauses.rehearse(question))
    # On remote hosts that may be longer than the whole budget.
    at.arming_s = min(2 * (time.monotonic() - began), _ARMING_S)


def arm_guards(at: Attempt) -> None:
    """Arm the guards on the poolers' hosts, then the source's, which starts the budget."""
    budget, began = at.budget, time.monotonic()
    after_s = at.plan.options.max_pause_s + at.arming_s + undoing.GUARD_LAG_S
    at.pauses.arm(after_s=after_s, question=at.question)
    # These guards must fire after the source's, so a budget that starts late is shorter.
    budget.begin(min(time.monotonic(), began + at.arming_s))
    guard.arm(at)
    with at.context.on(at.plan.source):
        at.not_after = fence.not_after(at.source, budget.latest("drain"))


def pause(at: Attempt) -> None:
    """Pause all aliases, if this process still has the locks."""
    at.context.require_locks()  # a process that took them has also ended our guards
    hold(at, at.budget.latest("fence"))


def hold(at: Attempt, until: float) -> None:
    """Pause all aliases; with `--terminate`, terminate transactions that do not end.

    They may end by themselves until `until`, on the monotonic clock. Raises PauseFailed, PauseLost.
    """
    fair_s = _FAIR_S + at.round_trips.pooler / 1000

    def left(kept_s: float) -> float:
        return max(fair_s, until - kept_s - time.monotonic())

    try:
        at.pauses.hold(seconds=left(at.kept_s))
    except PauseFailed as error:
        if not at.plan.options.terminate:
            raise
        with at.context.on(at.plan.source):
            for pid in error.pids:
                at.source.execute("SELECT pg_terminate_backend(%s)", [pid])
        at.pauses.open()
        at.pauses.hold(seconds=left(0))


def put_up_fence(at: Attempt) -> None:
    """Rename the schemas, and commit `fenced`; raises FenceRefused, FenceTooLate, NotAtCutover."""
    plan = at.plan
    with at.context.on(plan.source):
        fence.put_up(
            at.source,
            plan.source,
            plan.id,
            revision=at.budget.revision,
            deadline=at.budget.latest("drain"),
            not_after=at.not_after,
        )


def drain(at: Attempt) -> None:
    """Wait for sessions that write directly on the source; terminate them with `--terminate`.

    What they have committed may depend on moved tables: a view elsewhere would bypass the fence.
    Raises SourceUnfit for that, WritersLeft, and UnloggedMade.
    """
    with at.context.on(at.plan.source):
        if await_writers(at):
            require_uncrossed(at)


def await_writers(at: Attempt) -> bool:
    """Wait for them, and return whether there were any; raises WritersLeft, UnloggedMade."""
    plan, until = at.plan, at.budget.latest_after("drain")
    return at.without_writers(
        lambda kept_s: fence.drain(at.source, plan.source, plan.id, deadline=until - kept_s)
    )


def require_uncrossed(at: Attempt) -> None:
    """See that nothing binds moved tables by more than their names; raises SourceUnfit."""
    staying = planning.leaving(at.context.topology, at.plan)
    cross_schema.require_uncrossed(at.source, at.plan, staying)


def mark(at: Attempt) -> None:
    """Commit `drained`, and record the position that the target needs; raises NotPromoting."""
    revision = at.budget.revision + 1
    with at.context.on(at.plan.source):
        beside = blocks.logging_exactly(at.context, drained=revision + 1)
        lsn = journal.mark_drained(at.source, at.plan.id, revision=revision, beside=beside)
    if lsn is None:
        raise NotPromoting(at.plan.id, undoing.state(at.context))
    at.lsn = lsn


def catch_up(at: Attempt) -> None:
    """Wait until the target has replayed up to that position."""
    promotion.catch_up(at.context, at.lsn, deadline=at.budget.latest("snapshot"))


def look_again(at: Attempt) -> None:
    """Check, before the decision, that every alias is still paused, and the source's lock held.

    The session that has just reported the replay position holds the target's lock. Raises
    PauseLost, NodeLost.
    """
    locked = partial(at.context.require_lock, at.plan.source)
    with at.context.on(at.plan.source):
        if at.round_trips.source and at.round_trips.pooler:
            fanout.at_once(locked, at.pauses.require_held)
        else:  # starting threads takes longer than the round trip that they would save
            locked()
            at.pauses.require_held()


def decide(at: Attempt) -> None:
    """Commit `promoting` on the source, if it is still drained; raises NotPromoting."""
    decide_by(
        at,
        lambda revision: journal.advance(
            at.source,
            at.plan.id,
            [MoveState.drained],
            MoveState.promoting,
            revision=revision,
            drained_to=at.lsn,
        ),
    )


def decide_by(at: Attempt, commit: Callable[[int], bool]) -> None:
    """Pass the point of no return by a commit that tells whether it was still drained.

    It is given the revision that the journal has in this attempt, and not in another operator's
    after it. Raises NotPromoting.
    """
    context, plan = at.context, at.plan
    with context.on(plan.source):
        try:
            decided = commit(at.budget.revision + 2)
        except psycopg.OperationalError:
            # The answer was lost, but the commit may have happened or may still happen. So undo it:
            # whichever the source executed first counts.
            undoing.reconcile(context)
            fence.lift(at.source, plan.id, revision=at.budget.revision)
            decided = undoing.state(context) in (MoveState.promoting, MoveState.claimed)
    if not decided:
        raise NotPromoting(plan.id, undoing.state(context))


def claim(at: Attempt) -> None:
    """Make the target the owner."""
    handover = stream if at.plan.streams else promotion
    at.opened = handover.claim(at.context, at.lsn)
    at.is_sure()


def _round_trips(at: Attempt) -> RoundTrips:
    """Measure the round trips to the source, the target and the poolers."""
    source, target = at.plan.source, at.plan.target
    took = {}
    for node in (source, target):
        ask = partial(at.context.session(node).execute, "SELECT 1")
        with at.context.on(node):
            took[node] = shortest_ms(partial(replay.again, ask))
    return RoundTrips.of(source=took[source], target=took[target], pooler=at.pauses.round_trip_ms())


def _question(context: MoveContext) -> Question:
    """Return the query of a pooler's guard: whether the target serves the shards."""
    dsn = paused_pooler.dsn(context.target, context.topology.database)
    handover = stream if context.plan.streams else promotion
    return Question(dsn, handover.serves(context).as_string())
