"""Reserve: writes the journal, takes the source's lock, makes the slot and bounds its WAL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.errors import ShardctlError
from shardctl.moves import cloned, held_wal, ledger, marks, undoing, wal
from shardctl.moves.context import Use
from shardctl.moves.step import Step
from shardctl.moves.steps import undecided
from shardctl.postgres import clone as clones
from shardctl.postgres import slots
from shardctl.state import events, journal, leash, states
from shardctl.state.journal import MoveState
from shardctl.topology import ranges

if TYPE_CHECKING:
    from shardctl.moves.context import MoveContext
    from shardctl.postgres.connection import Connection
    from shardctl.state.journal import Move

_FENCED = (MoveState.fenced, MoveState.drained)


def probe(context: MoveContext) -> bool:
    """Return whether the journal has the move, and the slot and its limit, if still needed."""
    move = context.journal()
    if move is not None and not move.state.undoable:
        return True  # its source may be unreachable by then
    if move is None or not context.holds(context.plan.source):
        return False
    with context.on(context.plan.source):
        session = context.session(context.plan.source)
        kept = _kept(context, session)
        return bool(kept) and leash.watched(session, kept) == {*kept}


def run(context: MoveContext) -> None:
    """Take the source's lock, write the journal, make the slot and bound its WAL.

    If the slot of an earlier attempt is gone, its copy is useless and is made again. A clone that
    follows by a stream has another slot by then. Raises MoveUnderWay where another move began at
    the same moment, and leash_not_armed.
    """
    source = context.plan.source
    context.lock(source)
    with context.on(source):
        session = context.session(source)
        plan = context.plan = wal.settled(context.plan, context.source, session)
        known = write(context)
        if known is not None and plan.streams and known.state in _FENCED:
            # Without its guard, as after a failover, the fence is up: nothing could be copied.
            undoing.call_off(context)
            if context.past_cutover():
                return
        if known is None:
            pass
        elif not _kept(context, session):
            _begin_again(context, known, "is missing")
        elif held := wal.exceeding(session, plan):
            # The limit would drop the slot at once, and abort the move.
            _begin_again(context, known, f"held back {wal.megabytes(held)} of WAL without a limit")
        kept = _kept(context, session)
        for slot in kept or [plan.copy_slot]:
            arm(context, slot)
        if not kept:
            slots.make(session, plan.copy_slot)


def arm(context: MoveContext, slot: str) -> None:
    """Bound the WAL that one of the move's slots holds back, also before it is made.

    What bounds another slot goes on, without this process.
    """
    plan = context.plan
    if (armed := context.sessions.pop((plan.source, Use.leash), None)) is not None:
        armed.close()
    with context.on(plan.source):
        leash.arm(
            context.session(plan.source, Use.leash),
            context.session(plan.source),
            plan.source,
            move=plan.id,
            slot=slot,
            limit_bytes=plan.options.max_wal_bytes or 0,
        )


def _kept(context: MoveContext, session: Connection) -> list[str]:
    """List the move's slots that are there and have not lost their WAL."""
    return [slot for slot in context.plan.slots if slots.keeps(session, slot)]


def write(context: MoveContext) -> Move | None:
    """Write the journal, unless an earlier attempt has; return the earlier record.

    Raises MoveUnderWay where another move began at the same moment.
    """
    plan, session = context.plan, context.session(context.plan.source)
    if (known := journal.find(session, plan.id)) is not None:
        return known
    journal.open_move(
        session,
        move=plan.id,
        method=plan.method,
        source=plan.source,
        target=plan.target,
        shards=plan.shards,
        schemas=plan.schemas,
        retired=plan.retired,
        plan=plan.as_json(),
    )
    # Of two moves, at least one sees the other's row.
    try:
        require_alone(context)
    except ShardctlError:
        journal.advance(session, plan.id, [MoveState.reserved], MoveState.aborted)
        raise
    return None


def _begin_again(context: MoveContext, move: Move, why: str) -> None:
    """Delete a copy that cannot catch up any more, because the WAL that it needs is gone."""
    plan, reached = context.plan, journal.wal_limit(move)
    if plan.streams:
        undecided.require(context)
        context.forget(plan.target)
    if clones.remove(cloned.of(context)):
        if reached is not None:
            held = wal.megabytes(reached["held_bytes"])
            limit = wal.megabytes(reached["limit_bytes"])
            why = f"was dropped at its limit: it held back {held} of WAL, and the limit is {limit}"
        context.notice(
            f"node {plan.source}: slot {plan.copy_slot} {why}; shardctl has deleted the copy on "
            f"node {plan.target} and makes a new one"
        )
    session = context.session(plan.source)
    drop(context)  # where there is one, it has lost its WAL or keeps too much
    if reached is not None:
        wal.forget(session, move)


def drop(context: MoveContext) -> None:
    """Drop all slots of the move, and what else its source has for a stream."""
    plan = context.plan
    with context.on(plan.source):
        session = context.session(plan.source)
        slots.drop(session, plan.copy_slot)
    if plan.streams:
        held_wal.stop(context)
        with context.on(plan.source):
            marks.forget(session, plan.id)


def require_alone(context: MoveContext) -> None:
    """Check that no other move of the cluster is running; raises MoveUnderWay."""
    found = ledger.read(context.topology, purpose=context.purpose)
    for entry in found.entries:
        if entry.move.id != context.plan.id and entry.state in ("running", "unfinished"):
            raise journal.MoveUnderWay(entry.move.source)


def undo(context: MoveContext) -> None:
    """Drop the slot and close the journal."""
    drop(context)
    close(context)


def close(context: MoveContext) -> None:
    """Close the journal of an aborted move."""
    plan = context.plan
    with context.on(plan.source):
        session = context.session(plan.source)
        before = states.leading_to(MoveState.aborted)
        if journal.advance(session, plan.id, before, MoveState.aborted):
            result = f"shards {ranges.of(plan.shards)} stay on {plan.source}"
            events.record(session, "moves abort", f"move {plan.id} aborted: {result}")


STEP = Step("reserve", "writes the journal, takes the locks, makes the slot", probe, run, undo)
