"""How a streamed move's target takes over: it has all when the fence's mark has come through.

The claim is a function in the target. shardctl calls it, and so do the guards on the poolers'
hosts: a decision that has reached the target is carried out though shardctl has died.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from shardctl.access import fence, stream_fence
from shardctl.meter import listed
from shardctl.moves import blocks, marks, reverse_kept, stream_claim, structure, wal
from shardctl.moves.context import Use
from shardctl.postgres import blocking, catalog
from shardctl.postgres.logical import closing, slot, subscription
from shardctl.state import journal
from shardctl.state.journal import MoveState

if TYPE_CHECKING:
    from shardctl.moves.context import MoveContext
    from shardctl.postgres.connection import Connection

_VACUUMS = "ShareUpdateExclusiveLock"
_POLL_S = 0.05
_CAUGHT_UP_S = 60.0
_REMOVED_S = 60.0
_CLOSED_S = 10.0

serves = stream_claim.serves
claim = stream_claim.claim


def prepare(context: MoveContext) -> None:
    """Make the function of the claim; the sessions that decide and claim read all they need.

    See that the structure is what was copied, and that nothing keeps its locks from the fence.
    Raises StructureChanged, FenceRefused.
    """
    plan, target = context.plan, context.plan.target
    marks.require_publication(context)
    with context.on(plan.source):
        stream_claim.rehearse_decision(context)
    with context.on(target):
        marks.rehearse_fence(context)
        session = context.session(target, Use.lock)
        marks.require_copy(session, context.plan)
        stream_claim.make(context, session)
    with context.on(plan.source):
        session = context.session(plan.source)
        found = journal.find(session, plan.id)
        if found is not None and found.state.undoable:
            stream_fence.prepare(session, plan.id, revision=found.revision)
        digest, context.known = stream_fence.known(session, plan.schemas)
        structure.require(context, digest, plan.schemas)
        # What gives way to no lock, such as VACUUM, is not waited for by clients.
        locks = blocking.held(session, plan.schemas, but=blocking.CLIENTS)
        staying = [str(o) for o in locks if o.granted and o.mode == _VACUUMS and not o.yields_ms]
        if staying:
            raise fence.FenceRefused(plan.source, "; ".join(staying[:3]))


def catch_up(context: MoveContext, attempt: int, *, deadline: float) -> None:
    """Wait for the mark of the fence: everything that was committed before it is there then.

    Changes arrive with asynchronous commits. The target's own mark follows with a synchronous one,
    which puts them all on its disk. It comes with a snapshot, which does not see what clients write
    on the target later. Raises MarkNotSeen, and what `marks.require_copy` raises.
    """
    plan = context.plan
    while (snapshot := marks.fence_snapshot(context, attempt, deadline=deadline)) is None:
        marks.wait_for(context, attempt, stream_fence.MARK, deadline=deadline)
        with context.on(plan.target):
            session = context.session(plan.target, Use.lock)
            marks.require_copy(session, plan)
    context.exported = snapshot


def hold_snapshot(context: MoveContext) -> None:
    """Take the snapshot that the target has exported with its mark."""
    context.snapshot = context.exported


def release(context: MoveContext) -> None:
    """Drop subscription, slot and publication, which the move does not need any more."""
    plan = context.plan
    with context.on(plan.target):
        subscription.drop(context.session(plan.target), plan.slot)
    if not context.source_lost:
        wal.end_stream(context)
        _close_again(context)


def _close_again(context: MoveContext) -> None:
    """Take their names from moved schemas to which a failover of the source has given them back.

    A guard has claimed what the source's new primary did not know of. Raises FenceRefused.
    """
    plan, known = context.plan, context.journal()
    with context.on(plan.source):
        session = context.session(plan.source)
        both = list(zip(plan.schemas, plan.retired, strict=True))
        there = catalog.present(session, [*plan.schemas, *plan.retired])
        # Beside its retired copy a live schema is what a client has made since.
        reopened = [live for live, retired in both if live in there and retired not in there]
        if not reopened or known is None:
            return
        journal.copy(session, known)
        fence.close(session, plan.source, plan.id, deadline=time.monotonic() + _CLOSED_S)
        drawn = blocks.drawn(context, session)
    with context.on(plan.target):
        blocks.raise_above(context, context.session(plan.target), drawn)
    context.notice(
        f"node {plan.source} had lost its fence in a failover, and accepted writes to "
        f"{listed(reopened)} after node {plan.target} had claimed them: those rows are only in the "
        "retired schemas there: compare them by hand"
    )


def require_caught_up(context: MoveContext) -> None:
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
            raise marks.MarkNotSeen(plan.target, "decision", "")
        time.sleep(_POLL_S)
    marks.wait_for(context, decision["attempt"], marks.ARRIVED, deadline=deadline)


def reconcile(context: MoveContext) -> None:
    """Ask the target, where the source is on a new timeline: it may have lost the decision.

    The subscription is dropped first, so that no decision of the old source arrives later. What
    has arrived is carried out if the fence is up. A source without it has accepted rows: it keeps
    its shards, and no guard can claim them any more. Raises NodeUnavailable, NodeLocked.
    """
    plan = context.plan
    with context.on(plan.source):
        session = context.session(plan.source)
        move = journal.find(session, plan.id)
        if move is None or not move.state.undoable or marks.is_on_its_timeline(session, plan.id):
            return
        fenced = move.state in (MoveState.fenced, MoveState.drained)
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
        if not fenced:
            marks.revoke(there, plan.id)
        elif marks.last(there, plan.id, marks.DECISION) is not None:
            claim(context, "")
        found = journal.find(there, plan.id)
    with context.on(plan.source):
        if found is not None and found.state.claimed_by_target:
            journal.copy(session, found)
        else:
            slot.drop(session, plan.slot)  # the copy is to be made again
            marks.remove(session, plan.id, marks.PING)
            marks.note_timeline(session, plan.id)


def finish(context: MoveContext) -> None:
    """Remove what is left of the stream: triggers, the function, marks; keep what a reverse needs.

    The source's rights are read before its copies are closed.
    """
    plan = context.plan
    reverse_kept.check_target(context)
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
    reverse_kept.settle(context)
    with context.on(plan.target):
        forget(context, session)
    if not context.source_lost:
        with context.on(plan.source):
            marks.forget(context.session(plan.source), plan.id)


def forget(context: MoveContext, session: Connection) -> None:
    """Remove the marks on the target, and the function of the claim."""
    stream_claim.remove(context, session)
    marks.forget(session, context.plan.id)
