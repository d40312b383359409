"""Reserve, for a streamed move: the journal on both nodes, and both nodes' locks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.moves import ledger, marks, stream, undoing, wal
from shardctl.moves.context import Use
from shardctl.moves.refusals import TargetUnfit
from shardctl.moves.step import Step
from shardctl.moves.steps import reserve
from shardctl.postgres import catalog, slots
from shardctl.state import journal, leash
from shardctl.state.journal import MoveState

if TYPE_CHECKING:
    from shardctl.moves.context import MoveContext
    from shardctl.state.journal import Move


_FENCED = (MoveState.fenced, MoveState.drained)


def probe(context: MoveContext) -> bool:
    """Look for both journals' rows and both locks, and for the leash of a slot that is there."""
    move, plan = context.journal(), context.plan
    if move is not None and not move.state.undoable:
        return True
    if move is None or not (context.holds(plan.source) and context.holds(plan.target)):
        return False
    if move.state in _FENCED:
        return False
    with context.on(plan.target):
        if journal.find(context.session(plan.target), plan.id) is None:
            return False
    with context.on(plan.source):
        session = context.session(plan.source)
        return not slots.keeps(session, plan.slot) or leash.is_armed(session, plan.slot)


def run(context: MoveContext) -> None:
    """Take both locks, write the journal on both nodes, bound what a slot that is there holds.

    Raises MoveUnderWay where another move was begun at the same moment, TargetUnfit where the
    target has schemas of these names, NodeLocked, and leash_not_armed.
    """
    source, target = context.plan.source, context.plan.target
    context.lock(source)
    context.lock(target)
    with context.on(source):
        session = context.session(source)
        context.plan = wal.settled(context.plan, context.source, session)
        known = reserve.write(context)
        if known is None:
            marks.note_timeline(session, context.plan.id)
        move = journal.find(session, context.plan.id)
    try:
        with context.on(target):
            there = context.session(target)
            if journal.find(there, context.plan.id) is None:
                _require_absent(context)
                _end_known(context)
            if move is not None:
                journal.copy(there, move)
    except BaseException:
        # A reverse has nothing to begin with again: it is resumed, or aborted with all of it.
        if known is None and context.plan.reverses is None:
            with context.on(source):
                marks.forget(session, context.plan.id)
            reserve.close(context)
        raise
    if known is not None and _is_decided(context, known):
        return
    if known is not None and journal.wal_limit(known) is not None:
        wal.forget(session, known)
    if slots.keeps(session, context.plan.slot):
        arm(context)


def _is_decided(context: MoveContext, known: Move) -> bool:
    """Return whether the target owns the shards, or is to; without that, lift the fence.

    After a failover, the target may have a decision that this source has lost.
    """
    stream.reconcile(context)
    if known.state in _FENCED and not context.past_cutover():
        # Without its guard the fence is still up: nothing could be copied.
        undoing.call_off(context)
    return context.past_cutover()


def arm(context: MoveContext) -> None:
    """Bound the WAL that the move's slot holds back, also before it is made."""
    plan = context.plan
    if (armed := context.sessions.pop((plan.source, Use.leash), None)) is not None:
        armed.close()  # its statement runs until the new guard has replaced it
    with context.on(plan.source):
        leash.arm(
            context.session(plan.source, Use.leash),
            context.session(plan.source),
            plan.source,
            move=plan.id,
            slot=plan.slot,
            limit_bytes=plan.options.max_wal_bytes or 0,
        )


def undo(context: MoveContext) -> None:
    """Close the journal, on the source first: it is the one that counts."""
    plan = context.plan
    with context.on(plan.source):
        session = context.session(plan.source)
        stream.forget(context, session)
        reserve.close(context)
        move = journal.find(session, plan.id)
    if context.target_lost:
        return
    with context.on(plan.target):
        there = context.session(plan.target)
        stream.forget(context, there)
        if move is not None and journal.find(there, plan.id) is not None:
            journal.copy(there, move)


def _require_absent(context: MoveContext) -> None:
    """See that the target has no schema of a moved shard, which an abort would drop."""
    plan = context.plan
    if present := sorted(catalog.present(context.session(plan.target), plan.schemas)):
        raise TargetUnfit(
            plan.target,
            "schema_present",
            f"it has a schema {present[0]} already",
            hint="drop or rename it, if it is not needed; then begin the move again",
        )


def _end_known(context: MoveContext) -> None:
    """Close moves on the target that have ended, where its record was not reached then."""
    plan = context.plan
    there = context.session(plan.target)
    unended = {one.id for one in journal.read(there) if not one.state.closed}
    if unended:
        for entry in ledger.read(context.topology, purpose=context.purpose).entries:
            if entry.move.id in unended and entry.move.state.closed:
                journal.copy(there, entry.move)


STEP = Step("reserve", "writes the journal of both nodes, takes their locks", probe, run, undo)
