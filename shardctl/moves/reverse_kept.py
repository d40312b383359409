"""What a streamed move keeps for its reverse on both nodes: made, dropped, used or given up.

On the target, a publication and a slot, made before the fence: the slot has all that clients
change there. On the source, its retired copies are closed when the move is over, so that the
rows that a reverse goes on from stay what they were. Both nodes note what the structure is.
"""

from __future__ import annotations

import contextlib
import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shardctl.errors import Refused, ShardctlError
from shardctl.moves import ddl, marks, wal
from shardctl.moves import plan as planning
from shardctl.moves.plan import COPY_INSTEAD, Reversed
from shardctl.moves.step import Step
from shardctl.postgres import queries, slots
from shardctl.postgres.connection import NodeUnavailable, Route, connect
from shardctl.postgres.logical import closing, publication
from shardctl.provision import maps
from shardctl.state import events, journal, leash, ledger, lock, reverses
from shardctl.topology import routes
from shardctl.topology.model import NodeName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from shardctl.moves.context import MoveContext
    from shardctl.moves.plan import MovePlan, Options
    from shardctl.postgres.blocking import Holder
    from shardctl.postgres.connection import Connection
    from shardctl.state.journal import Move
    from shardctl.state.ledger import Entry
    from shardctl.topology.model import Topology

logger = logging.getLogger(__name__)

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
    with context.using(plan.target) as there:
        forget_on_target(there, plan.reverse or "")


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
    plan, move = context.plan, context.journal()
    if plan.reverse is None or move is None or reverses.ENDED in (move.report or {}):
        return
    with context.using(plan.target) as there:
        if context.source_lost:
            why = f"node {plan.source} is lost"
        elif move.proof != "compared":
            why = "its rows were not compared, or differ"
        elif not slots.keeps(there, name(context)):
            why = f"node {plan.target} has lost slot {name(context)}"
        elif marks.seen(there, plan.reverse, TARGET_SAME):
            return
        else:
            parts = (marks.last(there, plan.reverse, MADE) or {}).get("parts", [])
            changed = ddl.changes(parts, there, plan.schemas, named=plan.schemas, rights=False)
            if not changed:
                marks.put(there, plan.reverse, TARGET_SAME)
                return
            what = ", ".join(changed[:3])
            why = f"DDL has changed {what} on node {plan.target} since the cutover"
    _give_up(context, why)


def settle(context: MoveContext) -> None:
    """Close the source's retired copies, and note on both nodes what a reverse compares.

    The target's copies are without triggers by now.
    """
    plan = context.plan
    if plan.reverse is None:
        return
    with context.using(plan.target) as there:
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
    (files,) = queries.one(session, marks.QUERIES["files"], {"schemas": list(schemas)})
    parts, timeline = ddl.parts(session, schemas), marks.timeline(session)
    return {"parts": parts, "files": files, "timeline": timeline}


def _close(context: MoveContext) -> list[str]:
    """Close the retired copies; return what of them is not as the target has it."""
    plan, reverse = context.plan, context.plan.reverse or ""
    with context.using(plan.source) as session:
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
    with context.using(plan.target) as there:
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
    with context.using(plan.target) as there:
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


FINISH = "moves finish"


def plan_reverse(topology: Topology, entry: Entry, options: Options) -> MovePlan:
    """Plan the reverse of a move; raises not_reversible, and what `planning.make` raises."""
    reverse, lsn = require_reversible(entry)
    move = entry.move
    decided = planning.make(topology, move.shards, move.source, 0, options, move=reverse)
    purpose, needed = lock.purpose("moves reverse"), (decided.source, decided.target)
    return replace(
        decided,
        map_version=maps.agreed(topology, purpose=purpose, needed=needed).version,
        method=planning.STREAM,
        reverses=Reversed(move.id, lsn),
        lent=planning.lent(move),
    )


def require_reversible(entry: Entry) -> tuple[str, str]:
    """Give the id of the reverse, and from where it follows the target; raises not_reversible."""
    move, kept = entry.move, entry.reverse
    report, hint = move.report or {}, COPY_INSTEAD
    if entry.open:
        why, hint = f"it is {entry.state}", f"run `shardctl moves show {move.id}` to see its step"
    elif kept is None:
        why = "nothing was kept for its reverse (--keep-reverse)"
    elif kept.state == "open":
        return kept.move, report[journal.REVERSE_FROM]
    else:
        why = f"its reverse {kept.move} is in state {kept.state}"
        why += f": {report[reverses.ENDED]}" if reverses.ENDED in report else ""
    raise Refused("not_reversible", f"move {move.id} cannot be reversed: {why}", hint=hint)


def require_finishable(entry: Entry) -> None:
    """See that a move has something to give up; raises nothing_to_finish."""
    kept = entry.reverse
    if kept is None or "finish" not in kept.can:
        raise Refused(
            "nothing_to_finish",
            f"move {entry.move.id}: its reverse is {kept.state if kept else 'not kept'}",
            hint="run `shardctl moves list` to see which moves can be finished",
        )


def finish(
    topology: Topology, entry: Entry, *, notice: Callable[[str], None] = logger.warning
) -> None:
    """Give up the possibility to reverse a move; its retired copies can be pruned then.

    The source may be away, or in the topology no more: what it has is left to `moves doctor`.
    Raises NodeLocked, NodeUnavailable, UsageError of the target, nothing_to_finish,
    identity_blocked, copy_triggers_left.
    """
    source, target = NodeName(entry.move.source), routes.node(topology, entry.move.target).name
    nodes = [target, source] if source in topology.nodes else [target]
    away = f"node {source} is not in {topology.path}"
    try:
        _finish(topology, entry.move, nodes)
    except (NodeUnavailable, lock.NodeLocked) as error:
        if error.node != source:
            raise
        nodes, away = [target], error.message
        _finish(topology, entry.move, nodes)
    if source not in nodes:
        notice(
            f"{away}; its retired copies stay closed: run `shardctl moves doctor` when that node "
            "can be changed"
        )


def _finish(topology: Topology, move: Move, nodes: Sequence[NodeName]) -> None:
    with lock.held(topology, nodes, command=FINISH) as sessions:
        # The reverse may have begun since the operator looked.
        require_finishable(ledger.read(topology, purpose=lock.purpose(FINISH)).entry(move.id))
        reverse, there = reverses.id_of(move) or "", sessions[NodeName(move.target)]
        forget_on_target(there, reverse)
        publication.take_identities_back(there, planning.lent(move))
        if (session := sessions.get(NodeName(move.source))) is not None:
            forget_on_source(session, reverse)
        # Last: what was killed before is to be finished still.
        for session in sessions.values():
            reverses.note(session, move.id, reverses.ENDED, "`moves finish` gave it up")
            events.record(session, FINISH, f"move {move.id}: it cannot be reversed any more")


def finish_each(
    topology: Topology, moves: Iterable[str], *, notice: Callable[[str], None] = logger.warning
) -> None:
    """Give up reversing some moves, where that is possible; raises what `finish` raises."""
    purpose = lock.purpose(FINISH)
    for move in moves:
        entry = ledger.read(topology, purpose=purpose).entry(move)
        if entry.reverse is not None and "finish" in entry.reverse.can:
            finish(topology, entry, notice=notice)
            notice(f"move {move} can no longer be reversed")


def unguarded(entries: Iterable[Entry]) -> list[Entry]:
    """List the moves whose slot for a reverse nothing bounds, as after a restart of its server."""
    return [
        entry
        for entry in entries
        if (reverse := entry.reverse) is not None
        if reverse.state == "open" and reverse.held_bytes is not None and not reverse.watched
    ]


def guard(topology: Topology, entry: Entry) -> None:
    """Start the guard of a move's slot for a reverse again; raises NodeUnavailable.

    A reverse that has begun since has a guard of its own, which does not drop the slot in time.
    """
    purpose = lock.purpose("moves doctor")
    now = ledger.read(topology, purpose=purpose).entry(entry.move.id)
    move, reverse = now.move, now.reverse
    if reverse is None or not unguarded([now]):
        return
    node = topology.nodes[NodeName(move.target)]
    with (
        contextlib.closing(
            connect(node, topology.database, purpose=purpose, autocommit=True)
        ) as own,
        contextlib.closing(
            connect(node, topology.database, purpose=purpose, autocommit=True)
        ) as beside,
    ):
        leash.arm(
            own,
            beside,
            node.name,
            move=move.id,
            slot=reverse.slot,
            limit_bytes=reverse.limit_bytes or 0,
            keep_s=move.plan["options"]["keep_reverse_s"],
        )
