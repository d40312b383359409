"""Reopen: the retired copies get their names back, closed to clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from psycopg import sql

from shardctl.errors import together
from shardctl.moves import ddl, marks, reverse_kept
from shardctl.moves.preflight import reverse
from shardctl.moves.step import Step
from shardctl.moves.steps import copy as copies
from shardctl.postgres import slots
from shardctl.postgres.logical import closing, publication
from shardctl.state import reverses
from shardctl.topology import ranges

if TYPE_CHECKING:
    from shardctl.errors import ShardctlError
    from shardctl.moves.context import MoveContext
    from shardctl.moves.plan import MovePlan
    from shardctl.postgres.connection import Connection


def probe(context: MoveContext) -> bool:
    """See whether the copies have their names, and the source keeps what they lack."""
    if context.past_cutover():
        return True
    plan = context.plan
    with context.on(plan.target):
        named = marks.seen(context.session(plan.target), plan.id, marks.COPIED)
    with context.on(plan.source):
        session = context.session(plan.source)
        kept = slots.keeps(session, plan.slot) and publication.oid(session, plan.slot) is not None
    return named and kept


def run(context: MoveContext) -> None:
    """See that nothing has changed since the move that is reversed, and give the names back.

    Raises reverse_lost, and what `preflight.reverse` finds.
    """
    plan = context.plan
    with context.on(plan.source):
        session = context.session(plan.source)
        reverse.require_slot(session, plan)
        _note(session, plan)
        ddl.note(context)  # what changes from now on, the cutover finds
        problems: list[ShardctlError] = [*reverse.at_source(session, plan)]
    with context.on(plan.target):
        there = context.session(plan.target)
        problems += reverse.at_target(there, plan)
        if problems:
            raise together(problems)
        names = reverse.names(there, plan)
        closing.close(there, plan.id, names)
        copies.copy_migrations(context)
        _rename(context, names, plan.schemas)
        _note(there, plan)
    marks.note_copied(context)


def undo(context: MoveContext) -> None:
    """Give the copies their retired names again; the move cannot be reversed any more.

    What the stream has brought them stays: they are not what a reverse could begin with.
    """
    plan = context.plan
    begun = plan.reverses
    if begun is None:  # pragma: no cover  # it is a step of reverses alone
        raise AssertionError
    with context.on(plan.source):
        session = context.session(plan.source)
        reverse_kept.forget_on_target(session, plan.id)
        publication.take_identities_back(session, plan.lent)
        reverses.note(session, begun.move, reverses.ENDED, "its reverse was aborted")
    if context.target_lost:
        return
    copies.require_unclaimed(context)
    with context.on(plan.target):
        there = context.session(plan.target)
        retired = reverse.retired(plan)
        if reverse.names(there, plan) != retired:
            _rename(context, plan.schemas, retired)
        reverse_kept.forget_on_source(there, plan.id)
        reverses.note(there, begun.move, reverses.ENDED, "its reverse was aborted")


def _note(session: Connection, plan: MovePlan) -> None:
    """Let the journal show which move this one reverses."""
    if plan.reverses is not None:
        given = {"move": plan.id, "reverses": plan.reverses.move}
        session.execute(reverse_kept.QUERIES["note_reversed"], given)


def _rename(context: MoveContext, names: tuple[str, ...], wanted: tuple[str, ...]) -> None:
    """Rename schemas on the target, all at once."""
    statement = reverse_kept.QUERIES["rename"].format(
        names=sql.Literal(list(names)), wanted=sql.Literal(list(wanted))
    )
    context.session(context.plan.target).execute(statement)


def _left(plan: MovePlan) -> str:
    return f"closed copies of shards {ranges.of(plan.shards)}, which serve no client"


STEP = Step(
    "reopen",
    "gives the retired copies their names back, closed to clients",
    probe,
    run,
    undo,
    leaves=_left,
)
