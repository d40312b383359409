"""Reserve: the journal's row, the source's lock, the replication slot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.errors import ShardctlError
from shardctl.moves import ledger
from shardctl.moves.step import Step
from shardctl.postgres import slots
from shardctl.state import events, journal
from shardctl.state.journal import MoveState
from shardctl.topology import ranges

if TYPE_CHECKING:
    from shardctl.moves.world import World


_SLOT = "SELECT FROM pg_replication_slots WHERE slot_name = %s"


def probe(world: World) -> bool:
    """Look for the journal's row, and for the slot as long as the clone needs it."""
    move = world.journal()
    if move is not None and not move.state.undoable:
        return True  # and its source may not be there any more
    if move is None or not world.holds(world.plan.source):
        return False
    with world.on(world.plan.source):
        session = world.session(world.plan.source)
        return session.execute(_SLOT, [world.plan.slot]).fetchone() is not None


def run(world: World) -> None:
    """Take the source's lock, write the journal, make the slot.

    Raises MoveUnderWay where somebody has begun another move at the same moment.
    """
    plan = world.plan
    world.lock(plan.source)
    with world.on(plan.source):
        session = world.session(plan.source)
        new = journal.find(session, plan.id) is None
        if new:
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
        if new:
            # Each of two sees the other's row, or one does: both cannot miss it.
            try:
                require_alone(world)
            except ShardctlError:
                journal.advance(session, plan.id, [MoveState.reserved], MoveState.aborted)
                raise
        slots.make(session, plan.slot)


def require_alone(world: World) -> None:
    """See that no other move of the cluster is under way; raises MoveUnderWay."""
    found = ledger.read(world.topology, purpose=world.purpose)
    for entry in found.entries:
        if entry.move.id != world.plan.id and entry.state in ("running", "unfinished"):
            raise journal.MoveUnderWay(entry.move.source)


def undo(world: World) -> None:
    """Drop the slot and close the journal."""
    plan = world.plan
    with world.on(plan.source):
        session = world.session(plan.source)
        slots.drop(session, plan.slot)
        before = [state for state in MoveState if state.undoable]
        if journal.advance(session, plan.id, before, MoveState.aborted):
            told = f"shards {ranges.of(plan.shards)} stay on {plan.source}"
            events.record(session, "moves abort", f"move {plan.id} was called off: {told}")


STEP = Step("reserve", "writes the journal, takes the locks, makes the slot", probe, run, undo)
