"""What a streamed move keeps for its reverse on both nodes, made and dropped.

On the target, a publication and a slot, made before the fence: the slot has all that clients
change there. On the source, its retired copies are closed when the move is over, so that the
rows that a reverse goes on from stay what they were. Both nodes note what the structure is.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from shardctl.errors import ShardctlError
from shardctl.moves import ddl, marks, wal
from shardctl.moves.step import Step
from shardctl.postgres import slots
from shardctl.postgres.connection import Route
from shardctl.postgres.logical import closing, publication
from shardctl.state import journal, leash, reverses

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardctl.moves.context import MoveContext
    from shardctl.postgres.blocking import Holder
    from shardctl.postgres.connection import Connection


MADE = "reverse made"
"""The target's mark from before its publication; its note has the structure and the limit."""
TARGET_SAME, SOURCE_SAME = "reverse target same", "reverse source same"
"""The marks that a node has the structure with which the cutover began."""
TARGET_KEPT, SOURCE_KEPT = "reverse target kept", "reverse source kept"
"""The marks of both nodes when the move is over; their notes are what a reverse compares.

Those of the target reach the source when it follows, so they have names of their own.
"""

_REMOVED_S = 10.0


def name(context: MoveContext) -> str:
    """Name the slot and the publication on the target."""
    return journal.slot(context.plan.reverse or "")


def is_published(context: MoveContext) -> bool:
    """Return whether the target publishes what a reverse needs."""
    there = context.session(context.plan.target)
    return context.plan.reverse is not None and publication.oid(there, name(context)) is not None


def drop_on_target(context: MoveContext) -> None:
    """Drop what the target keeps, if it does."""
    plan = context.plan
    with context.on(plan.target):
        forget_on_target(context.session(plan.target), plan.reverse or "")


def forget_on_target(session: Connection, reverse: str) -> None:
    """Drop slot, publication and marks of a reverse; repeatable."""
    there = journal.slot(reverse)
    slots.end_sessions(session, there)  # one that waits for transactions to make the slot
    leash.end(session, there)
    slots.drop(session, there)
    publication.drop(session, there)
    marks.forget(session, reverse)


def forget_on_source(session: Connection, reverse: str) -> None:
    """Take the triggers from the retired copies, and remove the marks; repeatable."""
    deadline = time.monotonic() + _REMOVED_S
    closing.remove(session, reverse, deadline=deadline)
    marks.forget(session, reverse)


def check_target(context: MoveContext) -> None:
    """See that the target's structure is that of the copies, before their triggers go.

    What clients have altered since the claim is not on the source. Then nothing is kept.
    """
    plan = context.plan
    if plan.reverse is None or _given_up(context):
        return
    if (why := _why_not(context)) is None:
        with context.on(plan.target):
            there = context.session(plan.target)
            if marks.seen(there, plan.reverse, TARGET_SAME):
                return
            made = marks.last(there, plan.reverse, MADE) or {}
            changed = ddl.changes(
                made.get("parts", []), there, plan.schemas, named=plan.schemas, rights=False
            )
            if not changed:
                marks.put(there, plan.reverse, TARGET_SAME)
                return
        why = f"DDL has changed {', '.join(changed[:3])} on node {plan.target} since the cutover"
    _give_up(context, why)


def settle(context: MoveContext) -> None:
    """Close the source's retired copies, and note on both nodes what a reverse compares.

    The target's copies are without triggers by now.
    """
    plan = context.plan
    if plan.reverse is None:
        return
    with context.on(plan.target):
        there = context.session(plan.target)
        if not marks.seen(there, plan.reverse, TARGET_SAME):
            return  # it was given up
        limit = (marks.last(there, plan.reverse, MADE) or {}).get("limit_bytes", 0)
        if not marks.seen(there, plan.reverse, TARGET_KEPT):
            note = {"parts": ddl.parts(there, plan.schemas)}
            marks.put(there, plan.reverse, TARGET_KEPT, note=note)
    if changed := _close(context):
        _give_up(context, f"DDL has changed {', '.join(changed[:3])} on node {plan.source}")
        return
    with context.on(plan.target):
        if not leash.is_armed(there, name(context)):
            wal.bound(
                context, plan.target, name(context), limit, keep_s=plan.options.keep_reverse_s
            )
        reverses.note(there, plan.id, reverses.LIMIT, limit)


def look_at(session: Connection, schemas: Sequence[str]) -> dict[str, Any]:
    """Describe the retired copies: structure, files, and the timeline of the server."""
    given = {"schemas": list(schemas)}
    files = {
        f"{schema}.{table}": file
        for schema, table, file in session.execute(marks.QUERIES["files"], given)
    }
    return {
        "parts": ddl.parts(session, schemas),
        "files": files,
        "timeline": marks.timeline(session),
    }


def _close(context: MoveContext) -> list[str]:
    """Close the retired copies; return what of them is not as the target has it."""
    plan, reverse = context.plan, context.plan.reverse or ""
    with context.on(plan.source):
        session = context.session(plan.source)
        if marks.seen(session, reverse, SOURCE_KEPT):
            return []
        if not marks.seen(session, reverse, SOURCE_SAME):
            _, noted = ddl.noted(session, plan.id)
            if changed := ddl.changes(noted or [], session, plan.retired, named=plan.schemas):
                return changed
            marks.put(session, reverse, SOURCE_SAME)
        closing.close(session, reverse, plan.retired)
        marks.put(session, reverse, SOURCE_KEPT, note=look_at(session, plan.retired))
    return []


def _given_up(context: MoveContext) -> bool:
    move = context.journal()
    return move is not None and reverses.ENDED in (move.report or {})


def _why_not(context: MoveContext) -> str | None:
    """Say why nothing is to be kept, before structures are compared."""
    plan = context.plan
    if context.source_lost:
        return f"node {plan.source} is lost"
    move = context.journal()
    if move is None or move.proof != "compared":
        return "its rows were not compared, or differ"
    with context.on(plan.target):
        if not slots.keeps(context.session(plan.target), name(context)):
            return f"node {plan.target} has lost slot {name(context)}"
    return None


def _give_up(context: MoveContext, why: str) -> None:
    plan = context.plan
    drop_on_target(context)
    if not context.source_lost:
        with context.on(plan.source):
            forget_on_source(context.session(plan.source), plan.reverse or "")
    with context.on(plan.target):
        reverses.note(context.session(plan.target), plan.id, reverses.ENDED, why)
    context.notice(f"move {plan.id} cannot be reversed: {why}")


def _limit(context: MoveContext, there: Connection) -> int:
    """Give the most WAL that the target may keep: the move's limit, or its own disk's share."""
    limit = context.plan.options.max_wal_bytes or 0  # the step `reserve` has set it
    try:
        free = wal.look(context.target, there).free_bytes
    except ShardctlError:
        return limit
    return limit if free is None else min(limit, free // wal.SHARE)


def probe(context: MoveContext) -> bool:
    """See whether the target keeps all that its clients will change, or none is wanted."""
    plan = context.plan
    if plan.reverse is None or context.past_cutover():
        return True
    with context.on(plan.target):
        there = context.session(plan.target)
        return (
            marks.seen(there, plan.reverse, MADE)
            and publication.listed(there, name(context)) == publication.tables(there, plan.schemas)
            and slots.keeps(there, name(context))
        )


def run(context: MoveContext) -> None:
    """Publish the copies on the target, and make the slot there, which waits for transactions.

    Marks come before the publication: nothing of them is streamed. Raises slot_blocked,
    publication_blocked, slot_taken.
    """
    plan = context.plan

    def tell(blocker: Holder) -> None:
        context.notice(
            f"node {plan.target}: the slot for a reverse (--keep-reverse) can be made when this "
            f"transaction ends: {blocker}"
        )

    drop_on_target(context)
    way = Route(context.target, context.source, context.topology.database, name(context))
    with context.on(plan.target):
        there = context.session(plan.target)
        limit = _limit(context, there)
        note = {"parts": ddl.parts(there, plan.schemas), "limit_bytes": limit}
        marks.put(there, plan.reverse or "", MADE, note=note)
        tables = publication.tables(there, plan.schemas)
        publication.create(there, way.name, tables, move=plan.reverse or "")
        wal.bound(context, plan.target, name(context), limit, keep_s=plan.options.keep_reverse_s)
        with slots.make_logical(way, way.name, watch=there, report=tell):
            pass  # its snapshot is of no use


def undo(context: MoveContext) -> None:
    """Drop slot and publication on the target."""
    if context.plan.reverse is not None and not context.target_lost:
        drop_on_target(context)


STEP = Step(
    "keep-reverse",
    "publishes the copies on the target and makes a slot there, for a reverse",
    probe,
    run,
    undo,
)
