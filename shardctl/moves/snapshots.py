"""Take the snapshots of one moment of a stream, on source and target, while clients write.

Nothing of theirs is held up for long: a transaction that keeps the source's tables from being
locked is waited for between attempts, without a lock.
"""

from __future__ import annotations

import secrets
import time
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING

import psycopg

from shardctl.access import fence
from shardctl.errors import Refused
from shardctl.libpq import reason_of
from shardctl.moves import marks
from shardctl.moves.context import NodeRefused
from shardctl.moves.marks import Watch
from shardctl.postgres import blocking
from shardctl.postgres.connection import NodeLost
from shardctl.postgres.logical import moment
from shardctl.postgres.logical.moment import Side, Wanted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.moves.context import MoveContext
    from shardctl.postgres.connection import Connection
    from shardctl.postgres.logical.moment import Moment
    from shardctl.topology.model import NodeName

LOCK_TIMEOUT_MS = 25
"""How long an attempt makes clients wait that want a table; an autovacuum gives way in that time
where this role may set `deadlock_timeout`."""
_BETWEEN_S = 0.2
"""Clients that an attempt has held up go on in that time."""
_NEAR_S = 600.0
_BEFORE, _MARK = "before rehearsal", "rehearsal"


@contextmanager
def taken(context: MoveContext) -> Iterator[tuple[Moment, dict[str, float]]]:
    """Take the snapshots, and hold them until the block ends; give the report of that, too.

    It has how many attempts it took, and for how long the one that held writers up for longest did
    so, in all and because transactions were open. Raises WritersLeft, rehearsal_blocked,
    MarkNotSeen, StructureChanged, NodeLost.
    """
    plan = context.plan
    with ExitStack() as stack:

        def opened(node: NodeName) -> Connection:
            return stack.enter_context(closing(context.beside(node)))

        source = Side(opened(plan.source), opened(plan.source))
        target = Side(opened(plan.target), opened(plan.target))
        yield _take(context, source, target)


def _take(context: MoveContext, source: Side, target: Side) -> tuple[Moment, dict[str, float]]:
    plan, began, told = context.plan, time.monotonic(), False
    attempts, failed_ms, timeout_ms = 0, 0.0, LOCK_TIMEOUT_MS
    with context.using(plan.source) as session:
        tables = len(fence.oids(session, plan.schemas))
    while True:
        attempts += 1
        wanted = Wanted(
            plan.slot,
            plan.id,
            plan.schemas,
            tables,
            mark=f"{_MARK} {secrets.token_hex(4)}",
            before=marks.come_near(context, _BEFORE, seconds=_NEAR_S),
            lock_timeout_ms=timeout_ms,
        )
        try:
            taken = _attempt(context, source, target, wanted)
        except moment.NotLocked as error:
            failed_ms = max(failed_ms, error.held_ms)
            with context.on(plan.source):
                there = blocking.holding(session, plan.schemas, but=blocking.READERS)[:3]
                if there and not told:
                    told = True
                    context.notice(
                        f"node {plan.source}: the rehearsal waits for {'; '.join(there)}"
                    )
                # A cutover gives the same time to transactions that are open.
                if time.monotonic() > began + plan.options.max_pause_s:
                    why = "; ".join(there) or str(error)
                    timeout_ms = _clear(context, session, why, began, timeout_ms)
            time.sleep(_BETWEEN_S)
        else:
            held_ms, waited_ms = max((taken.held_ms, taken.waited_ms), (failed_ms, failed_ms))
            return taken, {
                "attempts": attempts,
                "writers_held_ms": round(held_ms, 1),
                "waited_ms": round(waited_ms, 1),
            }


def _clear(
    context: MoveContext, session: Connection, why: str, began: float, timeout_ms: int
) -> int:
    """End what is in the way, as far as that is allowed; give how long the next attempt waits.

    Raises WritersLeft, rehearsal_blocked.
    """
    plan, options = context.plan, context.plan.options
    if left := fence.lasting(session, plan.schemas, since=began):
        if not options.terminate or options.rehearse_only or None in left:
            raise fence.WritersLeft(plan.source, left, [why])
        for pid in left:
            session.execute("SELECT pg_terminate_backend(%s)", [pid])
        return timeout_ms
    yields_ms = blocking.yields_ms(session, plan.schemas)
    if yields_ms is None or timeout_ms >= yields_ms:
        raise Refused(
            "rehearsal_blocked",
            f"node {plan.source}: the rehearsal could not lock the moved tables within "
            f"{options.max_pause_s:g} s: {why}",
            hint="wait until that has ended, then run `shardctl moves resume`",
        )
    # Only an automatic vacuum is left, which needs that time where this role may not set it.
    return yields_ms


def _attempt(context: MoveContext, source: Side, target: Side, wanted: Wanted) -> Moment:
    """Take the snapshots, or raise NotLocked; raises MarkNotSeen, NodeLost, NodeRefused, too."""
    plan = context.plan
    try:
        return moment.take(source, target, wanted)
    except moment.NotSeen as error:
        raise marks.MarkNotSeen(plan.target, wanted.mark, Watch(context).trouble()) from error
    except psycopg.Error as error:
        for side, node in ((source, plan.source), (target, plan.target)):
            if side.lost:
                raise NodeLost(node, reason_of(error)) from error
        raise NodeRefused(plan.source, reason_of(error)) from error
