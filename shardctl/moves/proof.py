"""The proof that a move has brought all rows: made once, and kept in the journal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.access.structure_digest import StructureChanged
from shardctl.moves import confirm, cross_schema, promotion, stream, structure
from shardctl.moves import plan as planning
from shardctl.moves.confirm import CopiesDiffer
from shardctl.state import journal

if TYPE_CHECKING:
    from shardctl.moves.context import MoveContext


def stands(context: MoveContext) -> bool:
    """Return whether the journal has a proof."""
    move = context.journal()
    return move is not None and move.proof is not None


def make(context: MoveContext) -> None:
    """Compare the copies, and record the proof in the journal.

    Without the target's snapshot, there is a weaker proof. Raises CopiesDiffer, which the
    journal keeps: the copies cannot be compared a second time.
    """
    if not context.source_lost:
        _tell_of_unfenced(context)
        _tell_overtaken(context)
    differs: CopiesDiffer | None = None
    compared = None
    with context.timeline.span("confirm"):
        try:
            compared = confirm.compare(context)
        except CopiesDiffer as error:
            differs = error
    move = context.journal()
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
            require_caught_up(context, move.drained_to or "0/0")
            proof = "forked"
            if compared is not None:
                report |= {"uncompared": list(compared.left)}
    for node in context.journal_nodes:
        with context.on(node):
            session = context.session(node)
            journal.note(session, move, proof=proof, report=report | {"proof": proof})
    if differs is not None:
        raise differs


def require_caught_up(context: MoveContext, lsn: str) -> None:
    """Wait until the target of a decided move has all up to `lsn`; one that has claimed had it.

    Raises what the method's own `require_caught_up` raises.
    """
    if context.plan.streams:
        stream.require_caught_up(context)
    else:
        promotion.require_caught_up(context, lsn)


def _tell_overtaken(context: MoveContext) -> None:
    """Report DDL that was open over a stream's cutover without a lock, as CREATE FUNCTION is."""
    if not context.plan.streams:
        return
    try:
        structure.require_same(context, context.plan.retired)
    except StructureChanged as error:
        structure.tell_overtaken(context, error.changed)


def _tell_of_unfenced(context: MoveContext) -> None:
    """Report objects created during the cutover that write into the source's retired copies."""
    plan = context.plan
    staying = planning.leaving(context.topology, plan)
    with context.on(plan.source):
        found = cross_schema.dependencies(context.session(plan.source), plan.retired, staying)
    if found.total:
        context.notice(
            f"node {plan.source}: objects created during the cutover depend on retired copies of "
            f"moved shards, and writes through them are lost: drop {found}"
        )
