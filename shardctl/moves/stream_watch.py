"""What keeps a stream from going on: its slot is lost, or the target cannot apply a change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.moves import stream_origin
from shardctl.moves.context import Use
from shardctl.postgres import slots
from shardctl.postgres.logical import subscription

if TYPE_CHECKING:
    from shardctl.moves.context import MoveContext
    from shardctl.postgres.connection import Connection
    from shardctl.postgres.logical.subscription import Progress

_FAILURES = 3
"""How often a stream breaks off at the same position that is not worth waiting for."""


class Watch:
    """Looks at a stream while something is waited for that has to come through it."""

    def __init__(self, context: MoveContext) -> None:
        self._context = context
        self._before: Progress | None = None
        self._now: Progress | None = None

    def trouble(self) -> str:
        """Say why the target does not catch up, as far as both servers know.

        Raises slot_gone, publication_gone, subscription_gone.

        One failure may be a lost connection; a change that cannot be applied fails again.
        """
        context, plan = self._context, self._context.plan
        source = None if context.source_lost else context.open_session(plan.source, Use.work)
        if source is None:
            return ""
        with context.on(plan.source):
            slots.require(source, plan.source, plan.slot)
        stream_origin.require_publication(context)
        stream_origin.require_subscription(self._target, plan)
        now = subscription.progress(source, self._target, plan.slot, plan.slot)
        if now is None:
            return "the subscription or its slot is missing"
        self._now = now
        if self._before is None or self._before.confirmed != now.confirmed:
            self._before = now
        failures = now.errors - self._before.errors
        said = self.last_error() if failures else ""  # an older one may be repaired
        if not now.enabled:
            said = said or "the subscription is disabled"
        elif failures >= _FAILURES:
            said = said or f"it failed {failures} times at position {now.confirmed}"
        return said

    def last_error(self) -> str:
        """Give the last error of applying a change, if the target's log can be read."""
        if self._now is None or not self._now.errors:
            return ""
        return subscription.apply_error(self._target, self._now.origin) or ""

    @property
    def _target(self) -> Connection:
        return self._context.session(self._context.plan.target)
