"""Reserve: writes the journal, takes the locks, and bounds the WAL that the slot holds back.

For a clone it makes the slot; of a streamed move it writes both nodes' journals.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from shardctl.errors import ShardctlError
from shardctl.moves import marks, stream_claim, undoing, wal
from shardctl.moves import plan as planning
from shardctl.moves.plan import TargetUnfit
from shardctl.moves.step import Step
from shardctl.postgres import catalog, slots
from shardctl.postgres import clone as clones
from shardctl.postgres.logical import publication
from shardctl.state import events, identity, journal, leash, ledger
from shardctl.state.journal import MoveState
from shardctl.topology import ranges

if TYPE_CHECKING:
    from shardctl.moves.context import MoveContext
    from shardctl.state.journal import Move


_FENCED = (MoveState.fenced, MoveState.drained)


def probe(context: MoveContext) -> bool:
    """Return whether the journals have the move, this process its locks, and a slot its limit.

    A clone needs the slot; that of a stream is made by a later step.
    """
    move, plan = context.journal(), context.plan
    if move is None or not move.state.undoable:
        return move is not None  # its source may be unreachable by then
    if not all(context.holds(node) for node in plan.locked):
        return False
    if plan.streams:
        with context.on(plan.target):
            known = journal.find(context.session(plan.target), plan.id)
        if known is None or move.state in _FENCED:
            return False
    with context.using(plan.source) as session:
        if not slots.keeps(session, plan.slot):
            return plan.streams
        return leash.is_armed(session, plan.slot)


def run(context: MoveContext) -> None:
    """Take the source's lock, write the journal, make the slot and bound its WAL.

    If the slot of an earlier attempt is gone, its copy is useless and is made again. Raises
    MoveUnderWay where another move began at the same moment, and leash_not_armed.
    """
    source = context.plan.source
    context.lock(source)
    with context.using(source) as session:
        plan = context.plan = wal.settled(context.plan, context.source, session)
        known = write(context)
        # The limit would drop a slot that exceeds it at once, and abort the move.
        if known and (not slots.keeps(session, plan.slot) or wal.exceeding(session, plan)):
            _begin_again(context, known)
        wal.bound(context, plan.source, plan.slot, plan.options.max_wal_bytes or 0)
        slots.make(session, plan.slot)


def write(context: MoveContext) -> Move | None:
    """Write the journal, unless an earlier attempt has; return the earlier record.

    Raises MoveUnderWay where another move began at the same moment.
    """
    session = context.session(context.plan.source)
    if (known := journal.find(session, context.plan.id)) is not None:
        return known
    plan = context.plan
    if plan.options.identity_full:  # a reverse has those of the move that it reverses
        plan = replace(plan, lent=publication.missing_identities(session, plan.schemas))
    systems = dict[str, str]()  # what these nodes stay when they listen elsewhere
    for node in plan.locked:
        with context.using(node) as there:
            systems[node] = identity.system(there)
    plan = context.plan = replace(plan, systems=systems)
    columns = {name: getattr(plan, name) for name in planning.COLUMNS}
    journal.open_move(session, move=columns.pop("id"), plan=plan.as_json(), **columns)
    # Of two moves, at least one sees the other's row.
    try:
        require_alone(context)
    except ShardctlError:
        journal.advance(session, plan.id, [MoveState.reserved], MoveState.aborted)
        raise
    return None


def _begin_again(context: MoveContext, move: Move) -> None:
    """Delete a copy that cannot catch up any more, because the WAL that it needs is gone."""
    plan = context.plan
    context.forget(plan.target)  # its server may be the copy's
    if clones.remove(context.clone):
        context.notice(
            f"node {plan.source}: slot {plan.slot} is missing, or holds back more WAL than its "
            f"limit; shardctl has deleted the copy on node {plan.target} and makes a new one"
        )
    session = context.session(plan.source)
    slots.drop(session, plan.slot)  # where there is one, it has lost its WAL or keeps too much
    if journal.wal_limit(move) is not None:
        wal.forget(session, move)


def require_alone(context: MoveContext) -> None:
    """Check that no other move from or to one of its nodes is open; raises MoveUnderWay."""
    plan = context.plan
    found = ledger.read(context.topology, purpose=context.purpose)
    for entry in found.entries:
        if entry.open and entry.move.id != plan.id and not planning.apart(entry.move, plan):
            raise journal.MoveUnderWay(entry.move.source, entry.move.id)


def undo(context: MoveContext) -> None:
    """Drop the slot, and close the journal, on the source first: it is the one that counts."""
    plan = context.plan
    with context.using(plan.source) as session:
        slots.drop(session, plan.slot)
        if plan.streams:
            stream_claim.forget(context, session)
        before = journal.leading_to(MoveState.aborted)
        if journal.advance(session, plan.id, before, MoveState.aborted):
            result = f"shards {ranges.of(plan.shards)} stay on {plan.source}"
            events.record(session, "moves abort", f"move {plan.id} aborted: {result}")
        move = journal.find(session, plan.id)
    if plan.streams and not context.target_lost:
        with context.using(plan.target) as there:
            stream_claim.forget(context, there)
            if move is not None and journal.find(there, plan.id) is not None:
                journal.copy(there, move)


STEP = Step("reserve", "writes the journal, takes the locks, makes the slot", probe, run, undo)


def run_stream(context: MoveContext) -> None:
    """Take both locks, write the journal on both nodes, bound what a slot that is there holds.

    Raises MoveUnderWay where another move was begun at the same moment, TargetUnfit where the
    target has schemas of these names, NodeLocked, reverse_wal, and leash_not_armed.
    """
    source, target = context.plan.source, context.plan.target
    context.lock(source)
    context.lock(target)
    with context.using(target) as there:
        if journal.find(there, context.plan.id) is None:
            # An abort would drop what is there.
            if present := sorted(catalog.present(there, context.plan.schemas)):
                raise TargetUnfit(
                    target,
                    "schema_present",
                    f"it has a schema {present[0]} already",
                    hint="drop or rename it, if it is not needed; then begin the move again",
                )
            _end_known(context)
    with context.using(source) as session:
        context.plan = wal.settled(context.plan, context.source, session)
        known = write(context)
        if known is None:
            marks.note_timeline(session, context.plan.id)
        move = journal.find(session, context.plan.id)
    if move is not None:
        with context.on(target):
            journal.copy(there, move)
    if known is not None and _is_decided(context, known):
        return
    if known is not None and journal.wal_limit(known) is not None:
        wal.forget(session, known)
    if slots.keeps(session, (plan := context.plan).slot):
        wal.require_kept(session, plan)
        wal.bound(context, plan.source, plan.slot, plan.options.max_wal_bytes or 0)


def _is_decided(context: MoveContext, known: Move) -> bool:
    """Return whether the target owns the shards, or is to; without that, lift the fence.

    After a failover, the target may have a decision that this source has lost.
    """
    stream_claim.reconcile(context)
    if known.state in _FENCED and not context.past_cutover():
        # Without its guard the fence is still up: nothing could be copied.
        undoing.call_off(context)
    return context.past_cutover()


def _end_known(context: MoveContext) -> None:
    """Close moves on the target that have ended, where its record was not reached then."""
    plan = context.plan
    there = context.session(plan.target)
    unended = {one.id for one in journal.read(there) if not one.state.closed}
    if unended:
        for entry in ledger.read(context.topology, purpose=context.purpose).entries:
            if entry.move.id in unended and entry.move.state.closed:
                journal.copy(there, entry.move)


STREAM_STEP = Step(
    "reserve",
    "writes the journal of both nodes, takes their locks",
    probe,
    run_stream,
    undo,
)
