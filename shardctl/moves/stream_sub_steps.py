"""What only the cutover of a streamed move does; see `cutover.py`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from shardctl.access import stream_fence, structure_digest
from shardctl.access.fence import WritersLeft
from shardctl.moves import locks, marks, standbys, stream, stream_claim, structure, sub_steps
from shardctl.moves.budget import REST_S
from shardctl.moves.standbys import StandbysBehind
from shardctl.postgres.connection import NodeLost, NodeUnavailable

if TYPE_CHECKING:
    from shardctl.moves.attempt import Attempt


_PING_S = 1.0
_POLL_S = 0.001


def ping(at: Attempt) -> None:
    """Send a mark through the stream before clients wait; raises MarkNotSeen, StandbysBehind.

    A stream that is behind would be waited for by all clients. The mark has the source's
    timeline, by which a failover is noticed.
    """
    context, plan = at.context, at.plan
    with context.on(plan.source):
        marks.note_timeline(at.source, plan.id, attempt=at.attempt)
        _find_standbys(at)
        # One that is away would be waited for by all clients, too.
        standbys.await_flushed(
            at.source,
            plan.source,
            at.standbys,
            standbys.position(at.source),
            what="ping",
            deadline=min(time.monotonic() + _PING_S, at.budget.latest("pause")),
        )
    marks.wait_for(context, at.attempt, marks.PING, deadline=at.budget.latest("pause"))


def pause(at: Attempt) -> None:
    """Pause all aliases, if this process still has the locks."""
    locks.require(at.context)  # a process that took them has also ended our guards
    sub_steps.hold(at, at.budget.latest("fence"))


def put_up_fence(at: Attempt) -> None:
    """Let the target wait for the fence's mark; then lock, rename and mark.

    The target is at its wait then when the mark comes. The source goes on with the looks of
    `drain`, and tells whether other standbys may have come since the ping. With `--terminate`,
    those are ended who go on writing. Raises WritersLeft, FenceRefused, FenceTooLate, NotAtCutover.
    """
    marks.expect_fence(at.context, at.attempt, deadline=at.budget.latest("snapshot"))
    seen = [standbys.QUERIES["connected"].as_bytes()] if at.connected else []
    behind = [*at.context.known.looks, *seen]

    def put_up(kept_s: float) -> list[list[Any]]:
        return stream_fence.put_up(
            at.source,
            at.plan.source,
            at.plan.id,
            at.plan.schemas,
            tables=at.tables,
            attempt=at.attempt,
            revision=at.budget.revision,
            deadline=at.budget.latest("drain") - kept_s,
            not_after=at.not_after,
            behind=behind,
        )

    with at.context.on(at.plan.source):
        at.behind = at.without_writers(put_up)


def drain(at: Attempt) -> None:
    """Wait as behind a rename, and for what is made there; then look at the structure again.

    Locks on tables catch no session that makes a table, grants a right or alters a function. What
    is on the source's disk then has all that the target needs. Raises StructureChanged,
    WritersLeft.
    """
    known = at.context.known
    with at.context.on(at.plan.source):
        if at.connected and at.behind[-1] != [(at.connected,)]:
            at.standbys |= standbys.expected(at.source)
        lsn = known.untouched(at.behind[: len(known.looks)]) if known else None
        if lsn is None:
            _look_closer(at)
            lsn = standbys.position(at.source)
        at.lsn = lsn


def _look_closer(at: Attempt) -> None:
    # A session reads there, or DDL has changed other shards: one query finds out which.
    found = stream_fence.left(at.source, at.plan.id, at.plan.retired)
    if not (found.busy or found.unlogged or found.changing):
        structure.require(at.context, found.digest, at.plan.retired)
        return
    sub_steps.await_writers(at)
    at.without_writers(lambda kept_s: _await_changes(at, kept_s))
    # A session that the first look found may have changed something and ended since.
    sub_steps.require_uncrossed(at)
    structure.require_same(at.context, at.plan.retired)


def _await_changes(at: Attempt, kept_s: float) -> None:
    """Wait for those who change objects there without a lock; raises WritersLeft."""
    deadline = at.budget.latest_after("drain") - kept_s
    while pids := structure_digest.changing(at.source, at.plan.retired):
        if time.monotonic() > deadline:
            raise WritersLeft(at.plan.source, pids)
        time.sleep(_POLL_S)


def catch_up(at: Attempt) -> None:
    """Wait until the fence's mark has come through the stream."""
    stream.catch_up(at.context, at.attempt, deadline=at.budget.latest("snapshot"))


def look_again(at: Attempt) -> None:
    """Check that every alias is still paused, and both locks held, all at the same time.

    Raises PauseLost, NodeLost.
    """
    with at.context.on(at.plan.source):
        locks.require(at.context, beside=at.pauses.require_held)


def await_standbys(at: Attempt) -> None:
    """Wait until every standby that may be promoted has the fence; raises StandbysBehind.

    One that was there before and is away now has not.
    """
    with at.context.on(at.plan.source):
        deadline = at.budget.latest("snapshot")
        standbys.await_flushed(
            at.source, at.plan.source, at.standbys, at.lsn, what="fence", deadline=deadline
        )


def decide(at: Attempt) -> None:
    """Commit `promoting` and the decision on the source, if it is still drained."""
    context, lsn = at.context, at.lsn
    sub_steps.decide_by(
        at,
        lambda revision: stream_claim.decide(context, lsn, attempt=at.attempt, revision=revision),
    )


def await_standbys_again(at: Attempt) -> None:
    """Wait a while until the standbys have the decision, too.

    Without it, one that is promoted asks the target before it undoes anything. So the target
    claims when the budget is nearly spent: clients wait for it.
    """
    if not at.standbys:
        return
    try:
        with at.context.on(at.plan.source):
            lsn, deadline = standbys.position(at.source), at.budget.deadline - REST_S
            standbys.await_flushed(
                at.source, at.plan.source, at.standbys, lsn, what="decision", deadline=deadline
            )
    except (StandbysBehind, NodeLost, NodeUnavailable) as error:
        at.context.notice(f"{error.message}; the target claims the shards without waiting longer")


def _find_standbys(at: Attempt) -> None:
    if at.plan.options.ignore_standby:
        return
    # First: one that comes in between is looked for again.
    at.connected = standbys.connected(at.source)
    at.standbys = set(standbys.expected(at.source))
