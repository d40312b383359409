"""The WAL that the source of a streamed move holds back is shown while its target is made.

Nothing of shardctl's can be slowed down to hold back less: see ADR 30.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from shardctl.errors import ShardctlError
from shardctl.meter import BYTES, Held
from shardctl.moves import wal
from shardctl.moves.context import Use
from shardctl.postgres import slots
from shardctl.postgres.logical import publication, slot, stream_login
from shardctl.state import leash

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardctl.moves.context import MoveContext
    from shardctl.postgres.connection import Connection
    from shardctl.state.progress import Kept

CATCHING_UP = "catching up"


def shown(
    context: MoveContext, *, follows: bool = False, gone: Callable[[], None] = lambda: None
) -> Kept:
    """Give the move's progress, with the WAL that its slot holds back, once it is made.

    `follows` says that the target has a subscription: then its lag is shown, too, and the phase
    CATCHING_UP has what is left of the lag that it began with. `gone` is called when the slot was
    dropped or has lost its WAL: what is made for it is of no use then.
    """
    return context.kept_progress(_Watch(context, gone, follows=follows).look)


@contextmanager
def slot_required(context: MoveContext) -> Iterator[None]:
    """Report the slot instead of what its loss has ended; raises slot_gone."""
    plan = context.plan
    try:
        yield
    except ShardctlError:
        if (session := context.open_session(plan.source, Use.work)) is not None:
            with context.on(plan.source):
                slots.require(session, plan.source, plan.slot)
        raise


def stop(context: MoveContext) -> None:
    """End the stream on the source: drop its slot, with its guard, its role and its publication."""
    plan = context.plan
    with context.on(plan.source):
        session = context.session(plan.source)
        slot.drop(session, plan.slot)
        leash.end(session, plan.slot)  # it would see that itself, within a second
        stream_login.drop(session, plan.slot)
        publication.drop(session, plan.slot)


class _Watch:
    """Looks at the slot of a move in the thread that records its progress."""

    def __init__(self, context: MoveContext, gone: Callable[[], None], *, follows: bool) -> None:
        self._context = context
        self._limit = context.plan.options.max_wal_bytes
        self._follows = follows
        self._gone = gone
        self._first: int | None = None
        self._done = 0

    def look(self, kept: Kept, session: Connection) -> None:
        """Show what the slot holds back, as long as it is there."""
        plan = self._context.plan
        row = session.execute(wal.QUERIES["behind"], {"slot": plan.slot}).fetchone()
        if row is None or not row[2]:
            self._gone()
            return
        held, lag, _ = row
        if self._follows:
            self._catch_up(kept, lag)
        kept.holds(plan.target, Held(held, self._limit, lag if self._follows else None))

    def _catch_up(self, kept: Kept, lag: int) -> None:
        target = self._context.plan.target
        if self._first is None:
            self._first = lag
            kept.expect(target, CATCHING_UP, lag, BYTES)
        if (done := self._first - lag) > self._done:
            kept.advance(target, done - self._done)
            self._done = done
