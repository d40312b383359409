"""Retire: closes the move; its retired schemas wait for prune."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from shardctl.meter import listed
from shardctl.moves import clone_cutover, file, marks, reverse_kept, stream_claim
from shardctl.moves import plan as planning
from shardctl.moves.step import Step
from shardctl.postgres import clone as clones
from shardctl.postgres import queries, repmgr
from shardctl.postgres.logical import closing, publication
from shardctl.state import events, journal
from shardctl.state.journal import MoveState
from shardctl.topology import names, ranges

if TYPE_CHECKING:
    from shardctl.moves.context import MoveContext

_REMOVED_S = 60.0
_OVER = (MoveState.unconfirmed, MoveState.done)


def probe(context: MoveContext) -> bool:
    """Return whether the journals on both nodes say that the move is over."""
    newest = context.journal()
    if newest is None or newest.state not in _OVER:
        return False
    for node in context.journal_nodes:
        with context.on(node):
            copy = journal.find(context.session(node), context.plan.id)
        if copy is None or copy.state not in _OVER:
            return False  # it would block the next move there
    return True


def run(context: MoveContext) -> None:
    """Make the target a normal node, and close the journal on both nodes.

    Raises FileNotEdited the first time the topology file cannot be written.
    """
    plan = context.plan
    _write_file(context)
    if plan.streams:
        _finish_stream(context)
    else:
        _keep(context)
        _leave_repmgr(context)
        _tell_written(context)
    newest = context.journal()
    if newest is None:  # pragma: no cover  # it was read a moment ago
        raise AssertionError
    # Without a comparison that found no difference the move stays unconfirmed.
    state = MoveState.done if newest.proof == "compared" else MoveState.unconfirmed
    result = f"shards {ranges.of(plan.shards)} moved from {plan.source} to {plan.target}"
    for node in context.journal_nodes:
        with context.on(node):
            session = context.session(node)
            journal.copy(session, newest)
            if journal.advance(session, plan.id, [MoveState.routed], state):
                events.record(session, "move-shards", f"move {plan.id}: {result}")


def _write_file(context: MoveContext) -> None:
    """Write the new owners into the topology file, unless it has them."""
    try:
        file.write(context.topology, context.plan, context.after)
    except file.FileNotEdited as error:
        if not context.file_by_hand:
            raise
        context.notice(f"{error.message}: {error.hint}")


def _keep(context: MoveContext) -> None:
    """Remove the move's mark from the clone, if it has one."""
    clone = context.clone
    try:
        state = clones.look(clone)
    except clones.TargetNotEmpty:  # a normal node has no mark
        return
    if state == "opened":
        clones.keep(clone)


def _tell_written(context: MoveContext) -> None:
    """Report what was written on the clone, before its claim, to shards that stay on the source.

    It takes `database.user`, in a transaction that is READ WRITE by its own statement.
    """
    plan = context.plan
    staying = planning.leaving(context.topology, plan)
    retired = [names.retired(schema, plan.id) for schema in staying]
    with context.on(plan.target):
        session = context.session(plan.target)
        found = [
            table
            for (table,) in session.execute(clone_cutover.QUERIES["written"], {"retired": retired})
        ]
        (counted,) = queries.one(session, clone_cutover.QUERIES["counted"])
    if not counted:
        context.notice(
            f"node {plan.target}: its server has crashed since its promotion: it cannot be known "
            f"what {context.topology.database.user} has written before the claim to shards that "
            f"stay on node {plan.source}: prune drops such rows"
        )
    if found:
        context.notice(
            f"node {plan.target}: before the claim a session has written to {listed(found)}, and "
            f"perhaps rolled back; these shards stay on node {plan.source}: prune drops such rows"
        )


def _leave_repmgr(context: MoveContext) -> None:
    """Remove the clone from the repmgr cluster of its source.

    This can wait until clients are served: without a repmgrd there, nothing acts on it.
    """
    target = context.plan.target
    with context.on(target):
        session = context.session(target)
        database = context.topology.database
        left = repmgr.leave(context.target, database, session, purpose=context.purpose)
        if left is not None:
            result = f"move {context.plan.id}: removed from repmgr's cluster (database {left})"
            events.record(session, "move-shards", result)


def _finish_stream(context: MoveContext) -> None:
    """Remove the stream's triggers, function and marks; keep what a reverse needs."""
    plan = context.plan
    reverse_kept.check_target(context)
    with context.on(plan.target):
        session = context.session(plan.target)
        deadline = time.monotonic() + _REMOVED_S
        closing.remove(session, plan.id, deadline=deadline)
    reverse_kept.settle(context)
    with context.on(plan.target):
        if not reverse_kept.is_published(context):
            publication.take_identities_back(session, plan.lent)
        stream_claim.forget(context, session)
    if not context.source_lost:
        with context.on(plan.source):
            marks.forget(context.session(plan.source), plan.id)


STEP = Step("retire", "closes the move; retired schemas wait for `retain`", probe, run)
