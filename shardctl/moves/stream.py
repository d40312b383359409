"""The handover of a streamed move: the target has all when the fence's mark has come through.

The claim is a function in the target. shardctl calls it, and so do the guards on the poolers'
hosts: a decision that has reached the target is carried out though shardctl has died. See
`method.Handover` for what each function has to do.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from psycopg import sql

from shardctl.access import stream_fence
from shardctl.errors import ShardctlError, Unfinished
from shardctl.ids import generator
from shardctl.moves import blocks, claims, marks, standbys
from shardctl.moves.context import Use
from shardctl.postgres import queries
from shardctl.postgres.logical import closing, publication, slot, subscription
from shardctl.state import journal
from shardctl.state.journal import MoveState

if TYPE_CHECKING:
    from shardctl.moves.context import MoveContext
    from shardctl.postgres.connection import Connection
    from shardctl.postgres.logical.closing import Access

QUERIES = queries.load("shardctl.moves", "stream.sql")

ARRIVED = "arrived"
"""The target's own mark, on its disk, that it has everything up to the fence's mark."""
MARGIN = 32
"""By how many steps the target's sequences go beyond the source's, as after a crash."""
_POLL = 0.001
_LOOK_S = 1.0
_CAUGHT_UP_S = 60.0
_REMOVED_S = 60.0

reversible = False  # yet


class Decision(dict[str, Any]):
    """What the source has decided: attempt, revision and state, its clock, its sequences."""

    __slots__ = ()


class MarkNotSeen(ShardctlError):
    """A mark that did not come through the stream in time."""

    def __init__(self, node: str, what: str, why: str) -> None:
        super().__init__(
            f"node {node}: replication from the source did not reach mark `{what}` in time"
            + (f": {why}" if why else ""),
            hint="check the log of that node for why its subscription is behind, then run "
            "`shardctl moves resume`",
        )


class TargetPromoted(ShardctlError):
    """A target that was a standby of the one that has the copy."""

    def __init__(self, node: str, move: str) -> None:
        super().__init__(
            f"node {node}: the server was promoted after move {move} copied to it, so it may lack "
            "rows",
            hint="run `shardctl moves resume`: shardctl copies the shards again",
        )


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


def prepare(context: MoveContext) -> None:
    """Make the function of the claim, and let the session that will claim read and compile it."""
    target = context.plan.target
    with context.on(target):
        context.session(target, Use.snapshot)
        session = context.session(target, Use.lock)
        require_same_timeline(session, target, context.plan.id)
        # Rights may have changed since an earlier attempt made it; no guard is armed at this point.
        session.execute(QUERIES["drop_claim"].format(name=_name(context)))
        _make_claim(context, session)
        _rehearse(context, session)


def serves(context: MoveContext) -> sql.Composed:
    """Ask the target to claim what is decided: a guard needs nothing else to serve the clients."""
    return QUERIES["serves"].format(name=_name(context))


def mark(context: MoveContext, attempt: int, what: str) -> None:
    """Put a mark into the stream."""
    plan = context.plan
    with context.on(plan.source):
        marks.put(context.session(plan.source), plan.id, what, attempt=attempt)


def await_mark(context: MoveContext, attempt: int, what: str, *, deadline: float) -> None:
    """Wait until a mark has come through the stream; raises MarkNotSeen.

    A worker that fails to apply a row fails again and again, so that is not waited for.
    """
    plan = context.plan
    look_at = time.monotonic() + _LOOK_S
    with context.on(plan.target):
        session = context.session(plan.target, Use.lock)
        while not marks.seen(session, plan.id, what, attempt=attempt):
            now = time.monotonic()
            if now > min(deadline, look_at):
                why = _trouble(context)
                if why or now > deadline:
                    raise MarkNotSeen(plan.target, what, why)
                look_at = now + _LOOK_S
            time.sleep(_POLL)


def catch_up(context: MoveContext, lsn: str, *, attempt: int, deadline: float) -> None:  # noqa: ARG001
    """Wait for the mark of the fence: everything that was committed before it is there then.

    Changes arrive with asynchronous commits. The target's own mark follows with a synchronous one,
    which puts them all on its disk. Raises MarkNotSeen, TargetPromoted.
    """
    await_mark(context, attempt, stream_fence.MARK, deadline=deadline)
    plan = context.plan
    with context.on(plan.target):
        session = context.session(plan.target, Use.lock)
        require_same_timeline(session, plan.target, plan.id)
        marks.put(session, plan.id, ARRIVED, attempt=attempt)


def require_same_timeline(session: Connection, node: str, move: str) -> None:
    """Check that the target is the server that has the copy; raises TargetPromoted.

    A promoted standby of it may lack rows that the source does not send again.
    """
    copied = marks.last(session, move, marks.COPIED)
    if copied is None or copied.get("timeline") != standbys.timeline(session):
        raise TargetPromoted(node, move)


def hold_snapshot(context: MoveContext) -> None:
    """Export a snapshot, which does not see what clients write on the target later."""
    with context.on(context.plan.target):
        session = context.session(context.plan.target, Use.snapshot)
        [(snapshot,)] = queries.rows_of_last(session, QUERIES["snapshot"].format())
    context.snapshot = str(snapshot)


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


def take_over(context: MoveContext) -> None:
    """Do nothing: the target takes writes all the time, and its copies refuse them."""


def claim(context: MoveContext, lsn: str) -> bool:  # noqa: ARG001  # the decision has it
    """Claim; raises ClaimRefused where the target has lost what it had, as by a crash."""
    target = context.plan.target
    with context.on(target):
        session = context.session(target, Use.lock)
        _make_claim(context, session)
        decision = _decision(context)
        given = sql.Literal(None if decision is None else json.dumps(decision))
        statement = QUERIES["claim"].format(name=_name(context), decision=given)
        if session.execute(statement).fetchone() != (True,):
            raise ClaimRefused(target, context.plan.id)
    return True


def open_up(context: MoveContext) -> None:
    """Do nothing: the claim opens the shards."""


def settle(context: MoveContext) -> None:
    """Do nothing: the target has had its own settings all the time."""


def release(context: MoveContext) -> None:
    """Drop subscription, slot and publication, which the move does not need any more."""
    plan = context.plan
    with context.on(plan.target):
        subscription.drop(context.session(plan.target), plan.slot)
    if context.source_lost:
        return
    with context.on(plan.source):
        session = context.session(plan.source)
        slot.drop(session, plan.slot)
        publication.drop(session, plan.slot)


def start(context: MoveContext) -> None:
    """Do nothing: the target is a member, and its operator runs it."""


def require_caught_up(context: MoveContext, lsn: str) -> None:  # noqa: ARG001
    """Wait until the target of a decided move has the fence's mark; raises MarkNotSeen.

    One that has claimed had it.
    """
    plan = context.plan
    with context.on(plan.target):
        found = journal.find(context.session(plan.target), plan.id)
    if found is not None and found.state.claimed_by_target:
        return
    deadline = time.monotonic() + _CAUGHT_UP_S
    while (decision := _decision(context)) is None:
        if time.monotonic() > deadline:
            raise MarkNotSeen(plan.target, "decision", "")
        time.sleep(_POLL * 50)
    await_mark(context, decision["attempt"], ARRIVED, deadline=deadline)


def reconcile(context: MoveContext) -> None:
    """Ask the target, where the source is on a new timeline: it may have lost the decision.

    The subscription is dropped first, so that no decision of the old source arrives later. What
    has arrived is carried out. Raises NodeUnavailable, NodeLocked.
    """
    plan = context.plan
    with context.on(plan.source):
        session = context.session(plan.source)
        ping = marks.last(session, plan.id, marks.PING)
        move = journal.find(session, plan.id)
        if (
            ping is None
            or (ping or {}).get("timeline") == standbys.timeline(session)
            or move is None
            or not move.state.undoable
        ):
            return
    context.notice(
        f"node {plan.source} has a new timeline, as after a failover: shardctl first asks node "
        f"{plan.target} whether it has the decision"
    )
    if context.target_lost:
        return
    context.lock(plan.target)
    with context.on(plan.target):
        there = context.session(plan.target)
        subscription.drop(there, plan.slot)
        if marks.last(there, plan.id, marks.DECISION) is not None:
            claim(context, "")
        found = journal.find(there, plan.id)
    with context.on(plan.source):
        if found is not None and found.state.claimed_by_target:
            journal.copy(session, found)
        else:
            slot.drop(session, plan.slot)  # the copy is to be made again


def remains(context: MoveContext) -> None:
    """Give nothing: what the move has made on the target went with its server."""


def finish(context: MoveContext) -> None:
    """Remove what is left of the stream: triggers, the function, marks."""
    plan = context.plan
    with context.on(plan.target):
        session = context.session(plan.target)
        closing.remove(
            session,
            plan.id,
            plan.schemas,
            wanted=() if context.source_lost else _wanted(context),
            deadline=time.monotonic() + _REMOVED_S,
        )
        forget(context, session)
    if not context.source_lost:
        with context.on(plan.source):
            marks.forget(context.session(plan.source), plan.id)


def forget(context: MoveContext, session: Connection) -> None:
    """Remove the marks on the target, and the function of the claim."""
    session.execute(QUERIES["drop_claim"].format(name=_name(context)))
    marks.forget(session, context.plan.id)


def _name(context: MoveContext) -> sql.Identifier:
    return sql.Identifier(function(context.plan.id))


def _make_claim(context: MoveContext, session: Connection) -> None:
    """Make the function of the claim, where it is missing."""
    plan = context.plan
    named = {"name": function(plan.id)}
    if session.execute(QUERIES["has_claim"], named).fetchone() == (True,):
        return
    statement = QUERIES["claiming"].format(
        name=_name(context),
        move=sql.Literal(plan.id),
        mark=sql.Literal(ARRIVED),
        fence=sql.Literal(stream_fence.MARK),
        claimed=sql.Literal([s.value for s in MoveState if s.claimed_by_target]),
        register=sql.Literal(generator.REGISTER),
        margin=sql.Literal(MARGIN),
        blocks=sql.Literal(blocks.opening(context).as_string(session)),
        owning=claims.owning(plan, sql.SQL("(decision->>'drained_to')"), sql.SQL("")),
        opening=closing.opening(plan.id, _wanted(context)),
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
        marks.put(session, context.plan.id, ARRIVED, attempt=marks.REHEARSED)
        session.execute(QUERIES["claim"].format(name=_name(context), decision=decision))
    session.execute(serves(context))


def _wanted(context: MoveContext) -> list[Access]:
    """Read which rights there are to the moved schemas on the source, by their live names."""
    plan = context.plan
    live = dict(zip(plan.retired, plan.schemas, strict=True))
    with context.on(plan.source):
        found = closing.access(context.session(plan.source), [*plan.schemas, *plan.retired])
    # A live name behind the fence is of what somebody has made there meanwhile.
    found.sort(key=lambda one: one.schema in live)
    given = {live.get(one.schema, one.schema): one for one in found}
    return [replace(one, schema=schema) for schema, one in given.items()]


def _decision(context: MoveContext) -> Decision | None:
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


def _trouble(context: MoveContext) -> str:
    """Say what keeps the subscription from going on, as far as its node knows."""
    plan = context.plan
    session = context.session(plan.target)
    if context.source_lost or (source := context.open_session(plan.source, Use.work)) is None:
        return ""
    found = subscription.progress(source, session, plan.slot, plan.slot)
    if found is None:
        return "the subscription or its slot is missing"
    return (found.errors and subscription.apply_error(session, found.origin)) or ""
