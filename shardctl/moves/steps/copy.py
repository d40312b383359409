"""Copy: the rows of one moment, from which the stream goes on."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from shardctl.errors import together
from shardctl.meter import BYTES
from shardctl.moves import held_wal, marks, stream_origin
from shardctl.moves import structure as structures
from shardctl.moves.preflight import check as preflight
from shardctl.moves.preflight import wal
from shardctl.moves.step import Step
from shardctl.moves.steps import stream_reserve
from shardctl.moves.steps import structure as before
from shardctl.moves.steps.structure import COPYING
from shardctl.postgres import slots
from shardctl.postgres.logical import copying, publication, slot
from shardctl.postgres.logical.route import end_sessions

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardctl.fanout import Progress
    from shardctl.moves.context import MoveContext
    from shardctl.postgres.connection import Connection
    from shardctl.postgres.logical.slot import Blocker
    from shardctl.topology.model import NodeName

_JOBS = 4


def probe(context: MoveContext) -> bool:
    """See whether the target has the rows, and the source keeps the WAL that follows them."""
    if context.past_cutover():
        return True
    plan = context.plan
    with context.on(plan.source):
        there = slots.keeps(context.session(plan.source), plan.slot)
    return there and stream_origin.is_copied(context)


def run(context: MoveContext) -> None:
    """Publish, make the slot with its snapshot, and copy what that sees.

    The snapshot ends with its session, so a copy that was begun is made again.
    """
    plan = context.plan
    with context.on(plan.target):
        there = context.session(plan.target)
        begun = marks.seen(there, plan.id, COPYING)
        copied = marks.seen(there, plan.id, marks.COPIED)
    if begun:
        why = "the stream cannot go on from its copy" if copied else "the copy was not finished"
        context.notice(f"node {plan.target}: {why}, so shardctl restarts it")
        before.run(context)
    with context.on(plan.target):
        marks.put(context.session(plan.target), plan.id, COPYING)
    _drop(context)
    with context.on(plan.source):
        session = context.session(plan.source)
        _publish(context, session)
        stream_reserve.arm(context)
        gone = threading.Event()
        with (
            structures.explaining(context),
            slot.make(
                before.route(context),
                plan.slot,
                watch=session,
                report=lambda one: _tell(context, one),
            ) as snapshot,
            held_wal.shown(context, gone=gone.set) as shown,
            held_wal.slot_required(context),
        ):
            copying.copy(
                before.route(context),
                copying.tables(session, plan.schemas),
                snapshot=snapshot,
                jobs=_JOBS,
                max_rate=wal.rate(plan.options.max_rate) if plan.options.max_rate else None,
                report=_reporting(shown, plan.target),
                stop=gone,
            )
    with context.on(plan.source):
        slots.require(session, plan.source, plan.slot)
    stream_origin.note_copied(context)


def _publish(context: MoveContext, session: Connection) -> None:
    """Publish the moved tables, as they are now; `session` is with the source.

    The preflight may be long ago. Raises what it refuses of the tables (a table without a replica
    identity would refuse its clients' UPDATE from now on), and publication_blocked.
    """
    plan = context.plan
    found = preflight.published(context.topology, plan, purpose=context.purpose)
    if found:
        raise together(found)
    tables = publication.tables(session, plan.schemas)
    publication.create(session, plan.slot, tables, move=plan.id)


def undo(context: MoveContext) -> None:
    """Drop slot and publication."""
    _drop(context)
    context.remove_progress()


def _reporting(shown: Progress, target: NodeName) -> Callable[[int, int], None]:
    """Return what turns the copied bytes into progress."""
    before = -1

    def report(done: int, total: int) -> None:
        nonlocal before
        if before < 0:
            shown.expect(target, "copying", total, BYTES)
            before = 0
        shown.advance(target, done - before)
        before = done

    return report


def _drop(context: MoveContext) -> None:
    plan = context.plan
    with context.on(plan.source):
        end_sessions(context.session(plan.source), plan.slot)
    held_wal.stop(context)


def _tell(context: MoveContext, blocker: Blocker) -> None:
    context.notice(
        f"node {context.plan.source}: PostgreSQL makes the replication slot when this transaction "
        f"ends: {blocker}"
    )


STEP = Step("copy", "publishes the tables and copies their rows", probe, run, undo)
