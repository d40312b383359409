"""Retire: the move is closed; its retired schemas wait to be pruned."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.moves import file
from shardctl.moves.step import Step
from shardctl.postgres import clone as clones
from shardctl.postgres import repmgr
from shardctl.state import events, journal
from shardctl.state.journal import MoveState
from shardctl.topology import ranges

if TYPE_CHECKING:
    from shardctl.moves.world import World

_OVER = (MoveState.unconfirmed, MoveState.done)


def probe(world: World) -> bool:
    """See whether the journals on both sides say that it is over."""
    newest = world.journal()
    if newest is None or newest.state not in _OVER:
        return False
    for node in world.keepers:
        with world.on(node):
            copy = journal.find(world.session(node), world.plan.id)
        if copy is None or copy.state not in _OVER:
            return False  # it would keep the next move from beginning there
    return True


def run(world: World) -> None:
    """Make the clone a node like any other, and close the journal on both sides.

    Raises FileNotEdited, where the operator has not yet been told what to write by hand.
    """
    plan = world.plan
    _write_file(world)
    _keep(world)
    _leave_repmgr(world)
    clones.forget(world.clone)
    newest = world.journal()
    if newest is None:  # pragma: no cover  # it was read a moment ago
        raise AssertionError
    # Only a comparison that found no difference closes it for good.
    state = MoveState.done if newest.proof == "compared" else MoveState.unconfirmed
    told = f"shards {ranges.of(plan.shards)} moved from {plan.source} to {plan.target}"
    for node in world.keepers:
        with world.on(node):
            session = world.session(node)
            journal.copy(session, newest)
            if journal.advance(session, plan.id, [MoveState.routed], state):
                events.record(session, "move-shards", f"move {plan.id}: {told}")


def _write_file(world: World) -> None:
    """Write the new owners into the topology file, unless that is done."""
    try:
        file.write(world.topology, world.plan, world.after)
    except file.FileNotEdited as error:
        if not world.file_by_hand:
            raise
        world.notice(f"{error.message}: {error.hint}")


def _leave_repmgr(world: World) -> None:
    """Let the clone forget the repmgr cluster of its source, which it is no part of.

    Not before clients are served: nothing acts on it as long as no repmgrd runs there.
    """
    target = world.plan.target
    with world.on(target):
        session = world.session(target)
        database = world.topology.database
        left = repmgr.leave(world.target, database, session, purpose=world.purpose)
        if left is not None:
            told = f"move {world.plan.id}: taken out of repmgr's cluster (database {left})"
            events.record(session, "move-shards", told)


def _keep(world: World) -> None:
    """Take the move's mark off the clone, if that is not done."""
    try:
        state = clones.look(world.clone)
    except clones.TargetNotEmpty:  # a node like any other is nobody's clone
        return
    if state == "opened":
        clones.keep(world.clone)


STEP = Step("retire", "closes the move; retired schemas wait for `retain`", probe, run)
