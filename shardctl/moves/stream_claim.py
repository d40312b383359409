"""The decision of a streamed move, and the function by which its target claims (ADR 29).

shardctl calls the function, and so do the guards on the poolers' hosts.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from shardctl.access import stream_fence
from shardctl.errors import Unfinished
from shardctl.ids import generator
from shardctl.moves import blocks, claims, marks
from shardctl.moves.context import Use
from shardctl.postgres import queries
from shardctl.postgres.logical import closing
from shardctl.state import journal
from shardctl.state.journal import MoveState

if TYPE_CHECKING:
    from shardctl.moves.context import MoveContext
    from shardctl.postgres.connection import Connection
    from shardctl.postgres.logical.closing import Access

QUERIES = queries.load("shardctl.moves", "stream_claim.sql")

MARGIN = 32
"""By how many steps the target's sequences go beyond the source's, as after a crash."""


class Decision(dict[str, Any]):
    """What the source has decided: attempt, revision and state, its clock, its sequences."""

    __slots__ = ()


class ClaimRefused(Unfinished):
    """A target that does not claim, though it is decided."""

    def __init__(self, node: str, move: str) -> None:
        super().__init__(
            f"node {node}: rows or the decision of move {move} have not arrived, so it cannot "
            "claim the shards",
            hint="check in its log that its subscription works, then run `shardctl moves resume`",
        )


def function(move: str) -> str:
    """Name the function by which the target of a move claims.

    >>> function("5f3a9c1e")
    'shardctl_5f3a9c1e_claim'
    """
    return f"{journal.slot(move)}_claim"


def make(context: MoveContext, session: Connection) -> None:
    """Make the function anew, and let the session that will claim read and compile it."""
    # Rights may have changed since an earlier attempt made it; no guard is armed at this point.
    remove(context, session)
    _make(context, session)
    _rehearse(context, session)


def remove(context: MoveContext, session: Connection) -> None:
    """Drop the function."""
    session.execute(QUERIES["drop_claim"].format(name=_name(context)))


def serves(context: MoveContext) -> sql.Composed:
    """Ask the target to claim what is decided: a guard needs nothing else to serve the clients."""
    return QUERIES["serves"].format(name=_name(context))


def decide(context: MoveContext, lsn: str, *, attempt: int, revision: int) -> bool:
    """Commit `promoting` and the decision on the source, where the move is `drained` yet.

    Tells whether it was. Raises psycopg.Error.
    """
    plan = context.plan
    row = (
        context.session(plan.source)
        .execute(
            QUERIES["decide"].format(
                move=sql.Literal(plan.id),
                lsn=sql.Literal(lsn),
                attempt=sql.Literal(attempt),
                revision=sql.Literal(revision),
            )
        )
        .fetchone()
    )
    if row is None:
        return False
    context.own(Decision, lambda: Decision(row[0]))
    return True


def claim(context: MoveContext, lsn: str) -> bool:  # noqa: ARG001  # the decision has it
    """Claim; raises ClaimRefused where the target has lost what it had, as by a crash."""
    target = context.plan.target
    with context.on(target):
        session = context.session(target, Use.lock)
        found = decision(context)
        given = sql.Literal(None if found is None else json.dumps(found))
        statement = QUERIES["claim"].format(name=_name(context), decision=given)
        try:
            row = session.execute(statement).fetchone()
        except psycopg.errors.UndefinedFunction:
            _make(context, session)
            row = session.execute(statement).fetchone()
        if row != (True,):
            raise ClaimRefused(target, context.plan.id)
    return True


def _name(context: MoveContext) -> sql.Identifier:
    return sql.Identifier(function(context.plan.id))


def _make(context: MoveContext, session: Connection) -> None:
    """Make the function of the claim, where it is missing."""
    plan = context.plan
    named = {"name": function(plan.id)}
    if session.execute(QUERIES["has_claim"], named).fetchone() == (True,):
        return
    statement = QUERIES["claiming"].format(
        name=_name(context),
        move=sql.Literal(plan.id),
        mark=sql.Literal(marks.ARRIVED),
        fence=sql.Literal(stream_fence.MARK),
        claimed=sql.Literal([s.value for s in MoveState if s.claimed_by_target]),
        register=sql.Literal(generator.REGISTER),
        margin=sql.Literal(MARGIN),
        blocks=sql.Literal(blocks.opening(context).as_string(session)),
        owning=claims.owning(
            plan,
            sql.SQL("(decision->>'drained_to')"),
            also=QUERIES["reverse_from"].format(reverse_from=sql.Literal(journal.REVERSE_FROM)),
        ),
        opening=closing.opening(plan.id, wanted(context)),
    )
    session.execute(statement)


def _rehearse(context: MoveContext, session: Connection) -> None:
    """Claim in a transaction that is rolled back: the session has read and planned all of it then.

    Only new blocks of ids stay, in copies that are still closed.
    """
    revision = 1 << 40  # above that of any move
    given = {"attempt": marks.REHEARSED, "state": "promoting", "revision": revision}
    decision = sql.Literal(json.dumps({**given, "sequences": []}))
    with session.transaction(force_rollback=True):
        marks.put(session, context.plan.id, marks.ARRIVED, attempt=marks.REHEARSED)
        session.execute(QUERIES["claim"].format(name=_name(context), decision=decision))
    session.execute(serves(context))


def wanted(context: MoveContext) -> list[Access]:
    """Read which rights there are to the moved schemas on the source, by their live names."""
    plan = context.plan
    live = dict(zip(plan.retired, plan.schemas, strict=True))
    with context.on(plan.source):
        found = closing.access(context.session(plan.source), [*plan.schemas, *plan.retired])
    # A live name behind the fence is of what somebody has made there meanwhile.
    found.sort(key=lambda one: one.schema in live)
    given = {live.get(one.schema, one.schema): one for one in found}
    return [replace(one, schema=schema) for schema, one in given.items()]


def decision(context: MoveContext) -> Decision | None:
    """Give the decision: this process', or the source's, or what has arrived on the target."""
    plan = context.plan

    def read() -> Decision:
        for node in (plan.source, plan.target):
            session = context.open_session(node, Use.work)
            if session is None:
                continue
            with context.on(node):
                row = session.execute(QUERIES["decision"], {"move": plan.id}).fetchone()
            if row is not None:
                return Decision(row[0])
        raise _Undecided

    try:
        return context.own(Decision, read)
    except _Undecided:
        return None


class _Undecided(Exception):  # `_decision` catches it
    """No node that is there has the decision."""
