"""Promote, for a clone that hands over by stream: a node that has what the slot does not send.

The clone recovers exactly to where the slot begins, and is promoted there. No other client can
log in, and no worker of a subscription can start, until it is a closed node of its own (ADR 34).
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from psycopg import sql

from shardctl.errors import Refused
from shardctl.moves import cloned, marks, promotion, stream_origin
from shardctl.moves import structure as structures
from shardctl.moves.context import NodeRefused
from shardctl.moves.step import Step
from shardctl.moves.steps import clone, reserve, undecided
from shardctl.moves.steps import structure as copies
from shardctl.moves.steps.publish import publish
from shardctl.postgres import clone as clones
from shardctl.postgres import (
    copying,
    opening,
    overrides,
    queries,
    replay,
    slots,
    standby,
    timeline,
)
from shardctl.postgres.connection import NodeLost, NodeUnavailable
from shardctl.postgres.logical import closing, publication, slot, subscription
from shardctl.postgres.source import Source
from shardctl.state import journal
from shardctl.topology import names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardctl.fanout import Progress
    from shardctl.moves.context import MoveContext
    from shardctl.postgres.connection import Connection
    from shardctl.postgres.logical.slot import Blocker

logger = logging.getLogger(__name__)

QUERIES = queries.load("shardctl.moves.steps", "promote.sql")

_RECOVERY_S = 24 * 3600.0
_ASK_AGAIN_S = 60.0
_POLL_S = 0.05
_USELESS = ("clone_elsewhere", "slot_gone")
"""Refusals of a clone that was promoted at another position, or cannot get to its own."""
_AT_ONCE = 100
"""Schemas renamed in one transaction: a lock table has room for a few thousand locks."""


def probe(context: MoveContext) -> bool:
    """See whether the clone is a node that can follow, and the source keeps the WAL for it."""
    plan = context.plan
    if context.past_cutover():
        return True
    if not context.holds(plan.target):
        return False
    with context.on(plan.source):
        session = context.session(plan.source)
        if not slot.exists(session, plan.slot) or slots.keeps(session, plan.copy_slot):
            return False
    return stream_origin.is_copied(context)


def run(context: MoveContext) -> None:
    """Make the slot, let the clone recover to it, and make a closed node of it; repeatable.

    A clone that cannot go on from where it is is deleted and copied again. Raises slot_blocked,
    NotFollowing, SubscriptionsEnabled, PreparedLeft, clone_elsewhere, clone_not_closed.
    """
    plan, its_clone = context.plan, cloned.of(context)
    lsn = clones.recovers_to(its_clone)
    if lsn is not None and not _goes_on(context, lsn):
        _copy_again(context)
        lsn = None
    if lsn is None:
        lsn = _branch_off(context)
        _recover(context, lsn)
    _make_node(context)
    _let_workers_start(context)
    with context.on(plan.target):
        _require_closed(context, context.session(plan.target), {})
    stream_origin.note_copied(context, lsn)
    with context.on(plan.source):
        slots.drop(context.session(plan.source), plan.copy_slot)


def undo(context: MoveContext) -> None:
    """Delete the clone, and what the source has for its stream.

    Raises Unfinished where the clone owns the shards, or has the decision, and clone_unasked where
    that is unknown.
    """
    if not context.target_lost:
        undecided.require(context)
        context.forget(context.plan.target)
        clones.remove(cloned.of(context))
    reserve.drop(context)


def _goes_on(context: MoveContext, lsn: str) -> bool:
    """Start a clone that has its position, and see whether it can follow from there."""
    plan = context.plan
    with context.on(plan.source):
        session = context.session(plan.source)
        if not (slot.exists(session, plan.slot) and publication.exists(session, plan.slot)):
            return False
    try:
        _recover(context, lsn)
    except Refused as error:
        if error.code not in _USELESS:
            raise
        context.notice(error.message)
        return False
    with context.on(plan.target):
        copied = marks.seen(context.session(plan.target), plan.id, marks.COPIED)
    return not copied or stream_origin.is_copied(context)


def _copy_again(context: MoveContext) -> None:
    plan = context.plan
    context.notice(
        f"node {plan.target}: the stream cannot go on from its copy, so shardctl deletes it and "
        "copies again"
    )
    undecided.require(context)
    context.forget(plan.target)
    clones.remove(cloned.of(context))
    reserve.drop(context)
    reserve.arm(context, plan.copy_slot)
    with context.on(plan.source):
        slots.make(context.session(plan.source), plan.copy_slot)
    clone.run(context)


def _branch_off(context: MoveContext) -> str:
    """Publish, make the slot, and give the clone the position where it begins; return that.

    What an earlier process has made of it is made again: no clone has followed it.
    """
    plan = context.plan
    with context.on(plan.source):
        session = context.session(plan.source)
        slot.drop(session, plan.slot)
        publication.drop(session, plan.slot)
        marks.forget(session, plan.id)
        structures.note(context)
        publish(context)
        reserve.arm(context, plan.slot)

        def report(blocker: Blocker) -> None:
            context.notice(
                f"node {plan.source}: PostgreSQL makes the replication slot when this transaction "
                f"ends: {blocker}"
            )

        with slot.make(copies.route(context), plan.slot, watch=session, report=report) as made:
            lsn = made.lsn
        # Recovery ends at the first record behind its target; an idle source writes none.
        undecided.note(context)
        clones.recover_to(cloned.of(context), lsn, _parameters(context, overrides.recovering(lsn)))
    return lsn


def _parameters(context: MoveContext, more: Mapping[str, str]) -> str:
    source = Source(context.source, context.topology.database)
    return copying.parameters(
        cloned.of(context), source, context.session(context.plan.source), more
    )


def _recover(context: MoveContext, lsn: str) -> None:
    """Start the clone, wait until it is promoted at its position, and take its lock.

    While it recovers, replay breaks off every question that could hold it up, a login too: so it
    is asked again as long as its server runs.
    """
    its_clone, target = cloned.of(context), context.plan.target
    standby.start(its_clone)
    deadline = time.monotonic() + _ASK_AGAIN_S
    with context.kept_progress() as progress:
        while True:
            try:
                _await_promotion(context, lsn, progress)
            except (NodeUnavailable, NodeLost, NodeRefused, standby.NotFollowing) as error:
                if not its_clone.server.running() or time.monotonic() > deadline:
                    raise
                context.require_lock(context.plan.source)
                logger.debug("move %s: asking node %s again: %s", context.plan.id, target, error)
                context.forget(target)
                time.sleep(_POLL_S)
            else:
                return


def _await_promotion(context: MoveContext, lsn: str, progress: Progress) -> None:
    plan, its_clone = context.plan, cloned.of(context)
    with context.on(plan.target):
        session = context.session(plan.target)
        standby.recovered(
            its_clone,
            context.session(plan.source),
            session,
            lsn,
            progress=progress,
            timeout=_RECOVERY_S,
        )
        _require_position(context, session, lsn)
        if _workers(session) == 0:  # else it was restarted with the parameters of a node
            _require_closed(context, session, overrides.recovering(lsn))
    context.lock(plan.target)


def _require_closed(context: MoveContext, session: Connection, more: Mapping[str, str]) -> None:
    """Check that only shardctl can log in, before `open` has run; raises clone_not_closed."""
    its_clone = cloned.of(context)
    if clones.look(its_clone) != "opened":
        opening.require_closed(its_clone, session, context.topology.database.user, more=more)


def _require_position(context: MoveContext, session: Connection, lsn: str) -> None:
    """See that the clone has exactly what the slot does not send; raises clone_elsewhere."""
    found = timeline.switched_at(session)
    at = found.lsn if found is not None else "0/0"
    if timeline.position(at) != timeline.position(lsn):
        raise Refused(
            "clone_elsewhere",
            f"node {context.plan.target}: its clone was promoted at {at}, and the stream begins at "
            f"{lsn}",
            hint="run `shardctl moves resume`: shardctl copies again",
        )


def _make_node(context: MoveContext) -> None:
    """Give the promoted clone its own identity, and keep of its source only closed copies.

    Only shardctl can log in, and subscriptions do not run. Each part is repeatable.
    """
    plan = context.plan
    with context.on(plan.target):
        session = context.session(plan.target)
        session.execute(QUERIES["own_node"], {"target": plan.target})
        _drop_subscriptions(context, session)
        promotion.end_all_prepared(context, session)
        publication.drop(session, plan.slot)
        _retire(context, session)
        closing.close(session, plan.id, plan.schemas, keep=context.topology.database.user)
        with context.on(plan.source):
            move = journal.find(context.session(plan.source), plan.id)
        if move is not None:
            journal.copy(session, move)


def _drop_subscriptions(context: MoveContext, session: Connection) -> None:
    """Drop copied subscriptions of this database; raises SubscriptionsEnabled of another."""
    plan = context.plan
    found = session.execute(QUERIES["subscriptions"]).fetchall()
    elsewhere = [f"{name} in database {db}" for name, db, own, on in found if on and not own]
    if elsewhere:
        raise promotion.SubscriptionsEnabled(plan.source, elsewhere)
    for name, _, own, _ in found:
        if own and name != plan.slot:
            subscription.drop(session, name)
            context.notice(
                f"node {plan.target}: dropped subscription {name}, which came with the clone"
            )


def _retire(context: MoveContext, session: Connection) -> None:
    """Give the schemas of shards that stay their retired names."""
    plan = context.plan
    given = {"source": plan.source, "moved": list(plan.shards), "most": _AT_ONCE}
    while leaving := [schema for (schema,) in session.execute(QUERIES["leaving"], given)]:
        retired = [names.retired(schema, plan.id) for schema in leaving]
        statement = QUERIES["retire"].format(
            schemas=sql.Literal(leaving), retired=sql.Literal(retired)
        )
        session.execute(statement)


def _let_workers_start(context: MoveContext) -> None:
    """Restart the clone without its recovery target, with workers for subscriptions."""
    plan, its_clone = context.plan, cloned.of(context)
    with context.on(plan.target):
        if _workers(context.session(plan.target)) > 0:
            return
    with context.on(plan.source):
        clones.configure(its_clone, _parameters(context, {}))
    context.forget(plan.target)
    its_clone.server.stop()
    standby.start(its_clone)
    context.lock(plan.target)


def _workers(session: Connection) -> int:
    row = replay.again(lambda: session.execute(QUERIES["workers"]).fetchone())
    if row is None:  # pragma: no cover  # a SELECT without FROM gives one row
        raise AssertionError
    return int(row[0])


STEP = Step(
    "promote",
    "makes the slot of a stream, and promotes the clone exactly where that begins, closed to all",
    probe,
    run,
    undo,
)
