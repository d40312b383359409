"""The handover of a streamed move: the target has all when the fence's mark has come through.

The claim is a function in the target. shardctl calls it, and so do the guards on the poolers'
hosts: a decision that has reached the target is carried out though shardctl has died. See
`method.Handover` for what each function has to do.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from shardctl.access import stream_fence
from shardctl.errors import ShardctlError
from shardctl.moves import arrivals, fence_arrival, marks, standbys, stream_claim
from shardctl.moves.context import Use
from shardctl.postgres.logical import closing, publication, slot, subscription
from shardctl.state import journal, leash

if TYPE_CHECKING:
    from shardctl.moves.context import MoveContext
    from shardctl.postgres.connection import Connection

_POLL_S = 0.05
_CAUGHT_UP_S = 60.0
_REMOVED_S = 60.0

reversible = False  # yet
serves = stream_claim.serves
claim = stream_claim.claim


class _Exported(str):
    """The name of the target's snapshot."""

    __slots__ = ()


class TargetPromoted(ShardctlError):
    """A target that was a standby of the one that has the copy."""

    def __init__(self, node: str, move: str) -> None:
        super().__init__(
            f"node {node}: the server was promoted after move {move} copied to it, so it may lack "
            "rows",
            hint="run `shardctl moves resume`: shardctl copies the shards again",
        )


def prepare(context: MoveContext) -> None:
    """Make the function of the claim, and let the session that will claim read and compile it."""
    target = context.plan.target
    with context.on(target):
        context.session(target, Use.snapshot)
        session = context.session(target, Use.lock)
        require_same_timeline(session, target, context.plan.id)
        stream_claim.make(context, session)


def catch_up(context: MoveContext, lsn: str, *, attempt: int, deadline: float) -> None:  # noqa: ARG001
    """Wait for the mark of the fence: everything that was committed before it is there then.

    Changes arrive with asynchronous commits. The target's own mark follows with a synchronous one,
    which puts them all on its disk. It comes with a snapshot, which does not see what clients write
    on the target later. Raises MarkNotSeen, TargetPromoted.
    """
    plan = context.plan
    while (snapshot := fence_arrival.snapshot(context, attempt, deadline=deadline)) is None:
        arrivals.wait_for(context, attempt, stream_fence.MARK, deadline=deadline)
        with context.on(plan.target):
            session = context.session(plan.target, Use.lock)
            require_same_timeline(session, plan.target, plan.id)
    context.own(_Exported, lambda: _Exported(snapshot))


def require_same_timeline(session: Connection, node: str, move: str) -> None:
    """Check that the target is the server that has the copy; raises TargetPromoted.

    A promoted standby of it may lack rows that the source does not send again.
    """
    copied = marks.last(session, move, marks.COPIED)
    if copied is None or copied.get("timeline") != standbys.timeline(session):
        raise TargetPromoted(node, move)


def hold_snapshot(context: MoveContext) -> None:
    """Take the snapshot that the target has exported with its mark."""
    context.snapshot = context.own(_Exported, _Exported)


def take_over(context: MoveContext) -> None:
    """Do nothing: the target takes writes all the time, and its copies refuse them."""


def open_up(context: MoveContext) -> None:
    """Do nothing: the claim opens the shards."""


def settle(context: MoveContext) -> None:
    """Do nothing: the target has had its own settings all the time."""


def release(context: MoveContext) -> None:
    """Drop subscription, slot and publication, which the move does not need any more."""
    plan = context.plan
    with context.on(plan.target):
        subscription.drop(context.session(plan.target), plan.slot)
    if context.source_lost:
        return
    with context.on(plan.source):
        session = context.session(plan.source)
        slot.drop(session, plan.slot)
        leash.end(session, plan.slot)  # it would see that itself, within a second
        publication.drop(session, plan.slot)


def start(context: MoveContext) -> None:
    """Do nothing: the target is a member, and its operator runs it."""


def require_caught_up(context: MoveContext, lsn: str) -> None:  # noqa: ARG001
    """Wait until the target of a decided move has the fence's mark; raises MarkNotSeen.

    One that has claimed had it.
    """
    plan = context.plan
    with context.on(plan.target):
        found = journal.find(context.session(plan.target), plan.id)
    if found is not None and found.state.claimed_by_target:
        return
    deadline = time.monotonic() + _CAUGHT_UP_S
    while (decision := stream_claim.decision(context)) is None:
        if time.monotonic() > deadline:
            raise arrivals.MarkNotSeen(plan.target, "decision", "")
        time.sleep(_POLL_S)
    arrivals.wait_for(context, decision["attempt"], marks.ARRIVED, deadline=deadline)


def reconcile(context: MoveContext) -> None:
    """Ask the target, where the source is on a new timeline: it may have lost the decision.

    The subscription is dropped first, so that no decision of the old source arrives later. What
    has arrived is carried out. Raises NodeUnavailable, NodeLocked.
    """
    plan = context.plan
    with context.on(plan.source):
        session = context.session(plan.source)
        ping = marks.last(session, plan.id, marks.PING)
        move = journal.find(session, plan.id)
        if (
            ping is None
            or (ping or {}).get("timeline") == standbys.timeline(session)
            or move is None
            or not move.state.undoable
        ):
            return
    context.notice(
        f"node {plan.source} has a new timeline, as after a failover: shardctl first asks node "
        f"{plan.target} whether it has the decision"
    )
    if context.target_lost:
        return
    context.lock(plan.target)
    with context.on(plan.target):
        there = context.session(plan.target)
        subscription.drop(there, plan.slot)
        if marks.last(there, plan.id, marks.DECISION) is not None:
            claim(context, "")
        found = journal.find(there, plan.id)
    with context.on(plan.source):
        if found is not None and found.state.claimed_by_target:
            journal.copy(session, found)
        else:
            slot.drop(session, plan.slot)  # the copy is to be made again


def remains(context: MoveContext) -> None:
    """Give nothing: what the move has made on the target went with its server."""


def finish(context: MoveContext) -> None:
    """Remove what is left of the stream: triggers, the function, marks."""
    plan = context.plan
    with context.on(plan.target):
        session = context.session(plan.target)
        closing.remove(
            session,
            plan.id,
            plan.schemas,
            keep=context.topology.database.user,
            wanted=() if context.source_lost else stream_claim.wanted(context),
            deadline=time.monotonic() + _REMOVED_S,
        )
        forget(context, session)
    if not context.source_lost:
        with context.on(plan.source):
            marks.forget(context.session(plan.source), plan.id)


def forget(context: MoveContext, session: Connection) -> None:
    """Remove the marks on the target, and the function of the claim."""
    stream_claim.remove(context, session)
    marks.forget(session, context.plan.id)
