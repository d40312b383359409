"""Fences as strategies: what keeps clients from writing to moved shards on their source.

How a fence is lifted does not depend on its kind: see `access.fence.lift`.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING

from psycopg import sql

from shardctl import fanout
from shardctl.access import fence, write_fence
from shardctl.moves import cross_schema
from shardctl.moves import plan as planning

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardctl.moves.attempt import Attempt
    from shardctl.moves.context import MoveContext
    from shardctl.moves.plan import MovePlan


class Fence(ABC):
    """One kind of fence; where a function is not one of a kind's own, there is nothing to do."""

    refuses_writes: bool
    """Whether writers get errors meanwhile and readers go on; else all clients wait."""

    def prepare(self, context: MoveContext) -> None:  # noqa: B027  # most need nothing
        """Make on the source what needs no client to wait."""

    @abstractmethod
    def put_up(self, at: Attempt) -> None:
        """Put it up in one transaction, which commits `fenced`."""

    @abstractmethod
    def drain(self, at: Attempt) -> None:
        """Wait for those who write behind it all the same."""

    @abstractmethod
    def look_again(self, at: Attempt) -> None:
        """See, right before the decision, that it holds and that the source's lock is ours.

        The target's lock is held by the session that has just told what it has replayed.
        """

    @abstractmethod
    def behind(self, plan: MovePlan) -> tuple[str, ...]:
        """Name the moved schemas as they are behind it, in the order of the shards."""

    def take_along(self, plan: MovePlan) -> sql.Composable:  # noqa: ARG002  # most take nothing
        """Compose what the claim removes on the target; its block declares `one`, a record."""
        return sql.SQL("")

    def clear_away(self, context: MoveContext, *, deadline: float) -> None:  # noqa: B027  # same
        """Remove on the source what an undone one leaves behind."""


class Rename(Fence):
    """The moved schemas lose their names, for everyone at one instant; all clients wait."""

    refuses_writes = False

    def put_up(self, at: Attempt) -> None:
        """Rename the schemas; raises FenceRefused, FenceTooLate, NotAtCutover."""
        fence.put_up(
            at.source,
            at.plan.source,
            at.plan.id,
            revision=at.budget.revision,
            deadline=at.budget.latest("drain"),
            not_after=at.not_after,
        )

    def drain(self, at: Attempt) -> None:
        """Wait for those who write straight to the source; with `--terminate`, end them.

        What they have committed meanwhile may be bound to moved tables: a view elsewhere would
        write behind the fence. Raises SourceUnfit for that, and WritersLeft.
        """
        plan, until = at.plan, at.budget.latest("mark")
        try:
            waited = fence.drain(at.source, plan.source, plan.id, deadline=until - at.kept_s)
        except fence.WritersLeft as error:
            at.end(error)
            waited = fence.drain(at.source, plan.source, plan.id, deadline=until)
        if waited:
            staying = planning.leaving(at.context.topology, plan)
            cross_schema.require_uncrossed(at.source, plan, staying)

    def look_again(self, at: Attempt) -> None:
        """See that every alias is still paused; raises PauseLost, NodeLost."""
        locked = partial(at.context.require_lock, at.plan.source)
        if at.distance.source and at.distance.pooler:
            fanout.at_once(locked, at.gates.require_held)
        else:  # to start threads takes longer than the round trip that they would save
            locked()
            at.gates.require_held()

    def behind(self, plan: MovePlan) -> tuple[str, ...]:
        """Give the retired names."""
        return plan.retired


class Triggers(Fence):
    """The tables of the moved schemas refuse writes; reads go on until the target owns them."""

    refuses_writes = True

    def prepare(self, context: MoveContext) -> None:  # most need nothing
        """Make the function that the triggers call."""
        write_fence.prepare(context.session(context.plan.source))

    def put_up(self, at: Attempt) -> None:
        """Make the triggers; with `--terminate`, end those who go on writing.

        Raises WritersLeft, FenceRefused, FenceTooLate, NotAtCutover.
        """
        at.context.require_locks()  # a process that took them has ended our guards, too

        def put_up(kept_s: float) -> None:
            write_fence.put_up(
                at.source,
                at.plan.source,
                at.plan.id,
                at.plan.schemas,
                revision=at.budget.revision,
                deadline=at.budget.latest("drain") - kept_s,
                not_after=at.not_after,
            )

        try:
            put_up(at.kept_s)
        except fence.WritersLeft as error:
            at.end(error)
            put_up(0)

    def drain(self, at: Attempt) -> None:
        """Wait for what is being made there; raises FenceRefused, TablesUncovered, UnloggedMade."""
        self._require_refusing(at, deadline=at.budget.latest("mark"))

    def look_again(self, at: Attempt) -> None:
        """See that all tables still refuse writes."""
        at.context.require_lock(at.plan.source)
        self._require_refusing(at, deadline=time.monotonic())

    @staticmethod
    def _require_refusing(at: Attempt, *, deadline: float) -> None:
        write_fence.drain(at.source, at.plan.source, at.plan.schemas, deadline=deadline)

    def behind(self, plan: MovePlan) -> tuple[str, ...]:
        """Give the live names: they are kept until the target owns the shards."""
        return plan.schemas

    def take_along(self, plan: MovePlan) -> sql.Composable:
        """Remove the triggers."""
        return write_fence.drop(plan.id)

    def clear_away(self, context: MoveContext, *, deadline: float) -> None:
        """Remove the triggers, which are not in force any more; raises TriggersLeft."""
        plan = context.plan
        session = context.session(plan.source)
        write_fence.clear_away(session, plan.source, plan.id, plan.schemas, deadline=deadline)


FENCES: Mapping[str, Fence] = {planning.RENAME: Rename(), planning.TRIGGERS: Triggers()}


def of(plan: MovePlan) -> Fence:
    """Give the fence of a move."""
    return FENCES[plan.fence]
