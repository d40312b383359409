"""The decision of a streamed move, and the function by which its target claims (ADR 29).

shardctl calls the function, and so do the guards on the poolers' hosts.
"""

from __future__ import annotations

import json
import time
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from shardctl.access import stream_fence
from shardctl.errors import Incomplete
from shardctl.ids import generator
from shardctl.moves import claims, marks
from shardctl.moves.context import Use
from shardctl.postgres import queries, slots
from shardctl.postgres.logical import closing, subscription
from shardctl.postgres.queries import literals
from shardctl.state import journal
from shardctl.state.journal import MoveState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardctl.moves.context import MoveContext
    from shardctl.postgres.connection import Connection

QUERIES = claims.QUERIES

_NO_REVISION = -1
_POLL_S = 0.05
_CAUGHT_UP_S = 60.0
_NOTHING: Mapping[str, bool] = MappingProxyType({})
_STAYS_CLOSED = "stays_closed"
"""What only a rehearsal's decision has: the copies stay closed."""


def function(move: str) -> str:
    """Name the function by which the target of a move claims.

    >>> function("5f3a9c1e")
    'shardctl_5f3a9c1e_claim'
    """
    return f"{journal.slot(move)}_claim"


def make(context: MoveContext, session: Connection) -> None:
    """Replace the function, and let the session that will claim read and compile it."""
    # Rights may have changed since an earlier attempt made it; no guard is armed at this point.
    _make(context, session)
    rehearse(context, session)


def serves(context: MoveContext) -> sql.Composed:
    """Ask the target to claim what is decided: a guard needs nothing else to serve the clients."""
    return QUERIES["serves"].format(name=_name(context))


def decide(context: MoveContext, lsn: str, *, attempt: int, revision: int) -> bool:
    """Commit `promoting` and the decision on the source, where the move is still `fenced`.

    `revision` is that of `drained`, in between. Tells whether it was. Raises psycopg.Error.
    """
    plan = context.plan
    given = literals(
        move=plan.id, lsn=lsn, attempt=attempt, revision=revision, drained=revision - 1
    )
    session, message = context.session(plan.source), QUERIES["decide"].format(**given)
    rows = queries.rows_of_last(session, message)
    if rows:
        context.decision = rows[0][0]
    return bool(rows)


def rehearse_decision(context: MoveContext) -> None:
    """Decide at a revision that no move has: what the session reads is in its caches then."""
    decide(context, "0/0", attempt=marks.REHEARSED, revision=_NO_REVISION)


def claim(context: MoveContext) -> bool:
    """Claim; raises claim_refused where the target has lost what it had, as by a crash."""
    target = context.plan.target
    with context.using(target, Use.lock) as session:
        found = decision(context)
        given = sql.Literal(None if found is None else json.dumps(found))
        statement = QUERIES["claim"].format(name=_name(context), decision=given)
        try:
            row = session.execute(statement).fetchone()
        except psycopg.errors.UndefinedFunction:
            _make(context, session)
            row = session.execute(statement).fetchone()
        if row != (True,):
            raise Incomplete(
                "claim_refused",
                f"node {target}: rows or the decision of move {context.plan.id} have not arrived, "
                "so it cannot claim the shards",
                hint="check in its log that its subscription works, then run `shardctl moves "
                "resume`",
            )
    return True


def _name(context: MoveContext) -> sql.Identifier:
    return sql.Identifier(function(context.plan.id))


def _make(context: MoveContext, session: Connection) -> None:
    """Make the function of the claim."""
    plan = context.plan
    with context.using(plan.source) as source:
        grants = closing.granted(source, plan.schemas, retired=plan.retired)
    claimed = [s.value for s in MoveState if s.claimed_by_target]
    given = literals(move=plan.id, mark=marks.ARRIVED, fence=stream_fence.MARK, claimed=claimed)
    given |= literals(register=generator.REGISTER, margin=claims.MARGIN, plenty=claims.PLENTY)
    statement = QUERIES["claiming"].format(
        **given,
        **literals(stays_closed=_STAYS_CLOSED),
        name=_name(context),
        blocks=claims.performing(context),
        owning=claims.owning(
            plan,
            sql.SQL("(decision->>'drained_to')"),
            also=QUERIES["reverse_from"].format(reverse_from=sql.Literal(journal.REVERSE_FROM)),
        ),
        opening=closing.opening(session, plan.id, plan.schemas, grants),
    )
    session.execute(statement)


def rehearse(context: MoveContext, session: Connection) -> None:
    """Claim in a transaction that is rolled back: the session has read and planned all of it then.

    Only new blocks of ids stay, in copies that are still closed.
    """
    _try(context, session)
    # To give rights on a schema makes a session forget its plans; what it has read stays.
    _try(context, session, {_STAYS_CLOSED: True})
    session.execute(serves(context))


def measured_ms(context: MoveContext, session: Connection) -> float:
    """Claim in a transaction that is rolled back, after a rehearsal; return the time of that."""
    rehearse(context, session)
    return _try(context, session)


def _try(context: MoveContext, session: Connection, more: Mapping[str, bool] = _NOTHING) -> float:
    revision = 1 << 40  # above that of any move
    found = session.execute(QUERIES["sequences"], {"schemas": list(context.plan.schemas)})
    given = {"attempt": marks.REHEARSED, "state": "promoting", "revision": revision, **more}
    decision = sql.Literal(json.dumps(given | {"sequences": [row[0] for row in found]}))
    with session.transaction(force_rollback=True):
        marks.put(session, context.plan.id, marks.ARRIVED, attempt=marks.REHEARSED)
        began = time.monotonic()
        session.execute(QUERIES["claim"].format(name=_name(context), decision=decision))
        return (time.monotonic() - began) * 1000


def decision(context: MoveContext) -> dict[str, Any] | None:
    """Give the decision: this process', or the source's, or what has arrived on the target."""
    plan = context.plan
    for node in (plan.source, plan.target):
        session = context.open_session(node, Use.work)
        if context.decision is None and session is not None:
            with context.on(node):
                context.decision = marks.last(session, plan.id, marks.DECISION)
    return context.decision


def require_caught_up(context: MoveContext) -> None:
    """Wait until the target of a decided move has the fence's mark; raises MarkNotSeen.

    One that has claimed had it.
    """
    plan = context.plan
    with context.using(plan.target) as there:
        found = journal.find(there, plan.id)
    if found is not None and found.state.claimed_by_target:
        return
    deadline = time.monotonic() + _CAUGHT_UP_S
    while (decided := decision(context)) is None:
        if time.monotonic() > deadline:
            raise marks.MarkNotSeen(plan.target, "decision", "")
        time.sleep(_POLL_S)
    marks.wait_for(context, decided["attempt"], marks.ARRIVED, deadline=deadline)


def reconcile(context: MoveContext) -> None:
    """Ask the target, where the source is on a new timeline: it may have lost the decision.

    The subscription is dropped first, so that no decision of the old source arrives later. What
    has arrived is carried out if the fence is up. A source without it has accepted rows: it keeps
    its shards, and no guard can claim them any more. Raises NodeUnavailable, NodeLocked.
    """
    plan = context.plan
    with context.using(plan.source) as session:
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
    with context.using(plan.target) as there:
        subscription.drop(there, plan.slot)
        if not fenced:
            marks.revoke(there, plan.id)
        elif marks.last(there, plan.id, marks.DECISION) is not None:
            claim(context)
        found = journal.find(there, plan.id)
    with context.on(plan.source):
        if found is not None and found.state.claimed_by_target:
            journal.copy(session, found)
        else:
            slots.drop(session, plan.slot)  # the copy is to be made again
            marks.forget(session, plan.id, marks.PING)
            marks.note_timeline(session, plan.id)


def forget(context: MoveContext, session: Connection) -> None:
    """Remove the marks on the target, and the function of the claim."""
    session.execute(QUERIES["drop_claim"].format(name=_name(context)))
    marks.forget(session, context.plan.id)
