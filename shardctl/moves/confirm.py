"""Confirm a move: compare every moved table, row by row, with the target's at the cutover.

The source's retired copies no longer change. The target is queried in a snapshot taken before its
promotion, which does not see what applications have written since. Then the move is closed; its
retired schemas wait for prune.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from shardctl.access import structure_digest
from shardctl.access.structure_digest import StructureChanged
from shardctl.errors import Unfinished
from shardctl.meter import listed, sentences
from shardctl.moves import clone_cutover, comparison, ddl, file, marks, reverse_kept, stream_claim
from shardctl.moves import plan as planning
from shardctl.moves.comparison import SnapshotLost
from shardctl.moves.step import Step
from shardctl.postgres import clone as clones
from shardctl.postgres import queries
from shardctl.postgres.logical import closing, publication
from shardctl.state import events, journal
from shardctl.state.journal import MoveState
from shardctl.topology import names, ranges

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardctl.moves.comparison import Compared, Sessions
    from shardctl.moves.context import MoveContext
    from shardctl.topology.model import NodeName

_REMOVED_S = 60.0
_OVER = (MoveState.unconfirmed, MoveState.done)


class CopiesDiffer(Unfinished):
    """Moved tables whose copies on source and target are not the same."""

    def __init__(self, move: str, tables: Sequence[str]) -> None:
        super().__init__(
            f"move {move}: source and target differed at the cutover: {sentences(tables)}",
            hint="compare these tables by hand: the target serves clients, and prune never drops "
            "the source's retired copies; please report it as a bug. `shardctl moves resume` "
            "closes the move",
        )
        self.tables = tuple(tables)


def compare(context: MoveContext) -> Compared | None:
    """Compare all moved tables; None where the target's snapshot is lost.

    In its snapshot a clone has not claimed them, so they have the retired names; a stream's copies
    have the live ones. A table is locked no longer than `comparison.BLOCKS` of it take. A
    conflicting lock is waited for, with a notice. Raises CopiesDiffer, NodeLost, NodeRefused.
    """
    plan = context.plan
    if context.snapshot is None:
        return None
    held = {plan.target: context.snapshot}
    named = {plan.source: plan.retired, plan.target: plan.schemas if plan.streams else plan.retired}
    try:
        with comparison.opened(context, held, threading.Event()) as sessions:
            if not plan.streams:  # whose copies have OIDs of their own; its fence has looked
                _tell_overtaken(sessions, named)
            found = comparison.compare(sessions, named, context.progress)
    except SnapshotLost:
        return None
    except comparison.Uncomparable as error:
        context.notice(error.message)
        return None
    if found.differing:
        raise CopiesDiffer(plan.id, found.differing)
    return found


def _tell_overtaken(sessions: Sessions, named: Mapping[NodeName, Sequence[str]]) -> None:
    """Report what the source has and the target lacked: a transaction was open over the cutover.

    One that creates a function, or grants rights on a table, may hold no lock that a fence sees. No
    row is lost.
    """
    context, found = sessions.context, {}
    for node in named:
        session, ask = sessions.of[node][0], partial(sessions.look, node)
        found[node] = structure_digest.parts(session, named[node], ask)
    plan = context.plan
    there = dict(zip(plan.schemas, found[plan.target].values(), strict=True))
    ddl.tell_overtaken(context, [*structure_digest.changes(there, found[plan.source])])


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
        _tell_stream_overtaken(context)
    compared: Compared | CopiesDiffer | None
    with context.timeline.span("confirm"):
        try:
            compared = compare(context)
        except CopiesDiffer as error:
            compared = error
    move = context.journal()
    if move is None:  # pragma: no cover  # it was read a moment ago
        raise AssertionError
    report: dict[str, Any] = {"proof": "forked"}
    if isinstance(compared, CopiesDiffer):
        report = {"proof": "differs", "differing": [*compared.tables]}
    elif compared is not None:
        report |= {"tables": compared.tables, "rows": compared.rows}
        report |= {"uncompared": [*compared.left]} if compared.left else {"proof": "compared"}
    if report["proof"] == "forked":
        require_caught_up(context, move.drained_to or "0/0")
    report = (move.report or {}) | report
    for node in context.journal_nodes:
        with context.using(node) as session:
            journal.note(session, move, proof=report["proof"], report=report)
    if isinstance(compared, CopiesDiffer):
        raise compared


def require_caught_up(context: MoveContext, lsn: str) -> None:
    """Wait until the target of a decided move has all up to `lsn`; one that has claimed had it.

    Raises what the method's own `require_caught_up` raises.
    """
    if context.plan.streams:
        stream_claim.require_caught_up(context)
    else:
        clone_cutover.require_caught_up(context, lsn)


def _tell_stream_overtaken(context: MoveContext) -> None:
    """Report DDL that was open over a stream's cutover without a lock, as CREATE FUNCTION is."""
    if not context.plan.streams:
        return
    try:
        ddl.require_same(context, context.plan.retired)
    except StructureChanged as error:
        ddl.tell_overtaken(context, error.changed)


def _tell_of_unfenced(context: MoveContext) -> None:
    """Report objects created during the cutover that write into the source's retired copies."""
    plan = context.plan
    staying = planning.leaving(context.topology, plan)
    with context.on(plan.source):
        found = ddl.dependencies(context.session(plan.source), plan.retired, staying)
    if found.total:
        context.notice(
            f"node {plan.source}: objects created during the cutover depend on retired copies of "
            f"moved shards, and writes through them are lost: drop {found}"
        )


STEP = Step("confirm", "compares every moved table on both nodes", stands, make)


def is_closed(context: MoveContext) -> bool:
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


def close(context: MoveContext) -> None:
    """Make the target a normal node, and close the journal on both nodes.

    Raises FileNotEdited the first time the topology file cannot be written.
    """
    plan = context.plan
    try:
        file.write(context.topology, plan)
    except file.FileNotEdited as error:
        if not context.file_by_hand:
            raise
        context.notice(f"{error.message}: {error.hint}")
    if plan.streams:
        _finish_stream(context)
    else:
        _keep(context)
        _tell_written(context)
    newest = context.journal()
    if newest is None:  # pragma: no cover  # it was read a moment ago
        raise AssertionError
    # Without a comparison that found no difference the move stays unconfirmed.
    state = MoveState.done if newest.proof == "compared" else MoveState.unconfirmed
    result = f"shards {ranges.of(plan.shards)} moved from {plan.source} to {plan.target}"
    for node in context.journal_nodes:
        with context.using(node) as session:
            journal.copy(session, newest)
            if journal.advance(session, plan.id, [MoveState.routed], state):
                events.record(session, "move-shards", f"move {plan.id}: {result}")


def _keep(context: MoveContext) -> None:
    """Remove the move's mark from the clone, if it has one."""
    with suppress(clones.TargetNotEmpty):  # a normal node has no mark
        if clones.look(context.clone) == "opened":
            clones.keep(context.clone)


def _tell_written(context: MoveContext) -> None:
    """Report what was written on the clone, before its claim, to shards that stay on the source.

    It takes `database.user`, in a transaction that is READ WRITE by its own statement.
    """
    plan = context.plan
    staying = planning.leaving(context.topology, plan)
    retired = [names.retired(schema, plan.id) for schema in staying]
    with context.using(plan.target) as session:
        rows = session.execute(clone_cutover.QUERIES["written"], {"retired": retired})
        found = [table for (table,) in rows]
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


def _finish_stream(context: MoveContext) -> None:
    """Remove the stream's triggers, function and marks; keep what a reverse needs."""
    plan = context.plan
    reverse_kept.check_target(context)
    with context.using(plan.target) as session:
        closing.remove(session, plan.id, deadline=time.monotonic() + _REMOVED_S)
    reverse_kept.settle(context)
    with context.on(plan.target):
        if not reverse_kept.is_published(context):
            publication.take_identities_back(session, plan.lent)
        stream_claim.forget(context, session)
    if not context.source_lost:
        with context.on(plan.source):
            marks.forget(context.session(plan.source), plan.id)


RETIRE_STEP = Step("retire", "closes the move; retired schemas wait for `retain`", is_closed, close)
