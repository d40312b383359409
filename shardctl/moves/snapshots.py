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
    plan, waiting, attempts, failed_ms = context.plan, _Waiting(context), 0, 0.0
    while True:
        attempts += 1
        wanted = Wanted(
            plan.slot,
            plan.id,
            plan.schemas,
            len(waiting.tables),
            mark=f"{_MARK} {secrets.token_hex(4)}",
            before=marks.come_near(context, _BEFORE, seconds=_NEAR_S),
            lock_timeout_ms=waiting.lock_timeout_ms,
        )
        try:
            taken = _attempt(context, source, target, wanted)
        except moment.NotLocked as error:
            failed_ms = max(failed_ms, error.held_ms)
            waiting.after(error)
            time.sleep(_BETWEEN_S)
        else:
            held_ms, waited_ms = max((taken.held_ms, taken.waited_ms), (failed_ms, failed_ms))
            return taken, {
                "attempts": attempts,
                "writers_held_ms": round(held_ms, 1),
                "waited_ms": round(waited_ms, 1),
            }


class _Waiting:
    """Decides after an attempt that did not get its locks how the next one tries."""

    def __init__(self, context: MoveContext) -> None:
        self._context = context
        self._began = time.monotonic()
        # A cutover gives the same time to transactions that are open.
        self._deadline = self._began + context.plan.options.max_pause_s
        self._told = False
        self.lock_timeout_ms = LOCK_TIMEOUT_MS
        with context.on(context.plan.source):
            self._session = context.session(context.plan.source)
            self.tables = fence.oids(self._session, context.plan.schemas)

    def after(self, error: moment.NotLocked) -> None:
        """Return if there is to be another attempt; raises WritersLeft, rehearsal_blocked."""
        plan = self._context.plan
        with self._context.on(plan.source):
            there = blocking.holding(self._session, plan.schemas, but=blocking.READERS)[:3]
            if there and not self._told:
                self._told = True
                self._context.notice(
                    f"node {plan.source}: the rehearsal waits for {'; '.join(there)}"
                )
            if time.monotonic() > self._deadline:
                self._last(error, there)

    def _last(self, error: moment.NotLocked, there: list[str]) -> None:
        """End what is in the way, as far as that is allowed."""
        options, source = self._context.plan.options, self._context.plan.source
        left = fence.lasting(self._session, self.tables, since=self._began)
        if left:
            if not options.terminate or options.rehearse_only or None in left:
                raise fence.WritersLeft(source, left, there) from error
            for pid in left:
                self._session.execute("SELECT pg_terminate_backend(%s)", [pid])
            return
        yields_ms = blocking.yields_ms(self._session, self._context.plan.schemas)
        if yields_ms is None or self.lock_timeout_ms >= yields_ms:
            raise Refused(
                "rehearsal_blocked",
                f"node {source}: the rehearsal could not lock the moved tables within "
                f"{options.max_pause_s:g} s: {'; '.join(there) or error}",
                hint="wait until that has ended, then run `shardctl moves resume`",
            ) from error
        # Only an automatic vacuum is left, which needs that time where this role may not set it.
        self.lock_timeout_ms = yields_ms


def _attempt(context: MoveContext, source: Side, target: Side, wanted: Wanted) -> Moment:
    """Take the snapshots, or raise NotLocked; raises MarkNotSeen, NodeLost, NodeRefused, too."""
    plan = context.plan
    try:
        return moment.take(source, target, wanted)
    except moment.NotSeen as error:
        raise marks.MarkNotSeen(plan.target, wanted.mark, marks.trouble(context, [])) from error
    except psycopg.Error as error:
        for side, node in ((source, plan.source), (target, plan.target)):
            if side.lost:
                raise NodeLost(node, reason_of(error)) from error
        raise NodeRefused(plan.source, reason_of(error)) from error
