"""The proof that a move has brought all rows: made once, and kept in the journal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.moves import confirm, fork
from shardctl.moves import plan as planning
from shardctl.moves.confirm import CopiesDiffer
from shardctl.moves.preflight import schemas
from shardctl.state import journal

if TYPE_CHECKING:
    from shardctl.moves.world import World


def stands(world: World) -> bool:
    """See whether a proof stands in the journal."""
    move = world.journal()
    return move is not None and move.proof is not None


def make(world: World) -> None:
    """Compare; where the target's snapshot is lost, take the timelines for a lesser proof.

    Raises CopiesDiffer, which the journal keeps: the copies cannot be compared a second time.
    """
    if not world.source_lost:
        _tell_of_unfenced(world)
    differs: CopiesDiffer | None = None
    compared = None
    with world.timeline.span("confirm"):
        try:
            compared = confirm.compare(world)
        except CopiesDiffer as error:
            differs = error
    move = world.journal()
    if move is None:  # pragma: no cover  # it was read a moment ago
        raise AssertionError
    report = dict(move.report or {})
    if differs is not None:
        proof = "differs"
        report |= {"differing": list(differs.tables)}
    else:
        if compared is not None:
            report |= {"tables": compared.tables, "rows": compared.rows}
        if compared is not None and not compared.left:
            proof = "compared"
        else:
            fork.require(world, move.drained_to or "0/0")
            proof = "forked"
            if compared is not None:
                report |= {"uncompared": list(compared.left)}
    for node in world.keepers:
        with world.on(node):
            journal.note(world.session(node), move, proof=proof, report=report | {"proof": proof})
    if differs is not None:
        raise differs


def _tell_of_unfenced(world: World) -> None:
    """Tell of what was made during the cutover and writes into the source's retired copies."""
    plan = world.plan
    staying = planning.leaving(world.topology, plan)
    with world.on(plan.source):
        found = schemas.crossings(world.session(plan.source), plan.retired, staying)
    if found.total:
        world.notice(
            f"node {plan.source}: made during the cutover, and bound to retired copies of moved "
            f"shards: {found}; what is written through them is on no owner: drop them"
        )
