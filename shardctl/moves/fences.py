"""The kinds of fence, which keep clients from writing to moved shards on their source.

`access.fence.lift` lifts every kind.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from shardctl import fanout
from shardctl.access import fence, stream_fence, structure_digest
from shardctl.access.stream_fence import Known
from shardctl.access.structure_digest import StructureChanged
from shardctl.meter import listed
from shardctl.moves import blocks, cross_schema, locks, standbys, structure
from shardctl.moves import plan as planning
from shardctl.state import journal

if TYPE_CHECKING:
    from shardctl.moves.attempt import Attempt
    from shardctl.moves.context import MoveContext
    from shardctl.moves.plan import MovePlan

_POLL_S = 0.001


class Rename:
    """Renames the moved schemas, for all sessions at once; all clients wait."""

    def prepare(self, context: MoveContext) -> None:
        """Find the sequences whose very values the target needs."""
        session = context.session(context.plan.source)
        context.own(blocks.NearEnd, lambda: blocks.near_end(context, session))

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
        """Wait for sessions that write directly on the source; terminate them with `--terminate`.

        What they have committed may depend on moved tables: a view elsewhere would bypass the
        fence. Raises SourceUnfit for that, and WritersLeft.
        """
        if self._await_writers(at):
            self._require_uncrossed(at)

    @staticmethod
    def _await_writers(at: Attempt) -> bool:
        """Wait for them, and return whether there were any; raises WritersLeft, UnloggedMade."""
        plan, until = at.plan, at.budget.latest_after("drain")
        return at.without_writers(
            lambda kept_s: fence.drain(at.source, plan.source, plan.id, deadline=until - kept_s)
        )

    @staticmethod
    def _require_uncrossed(at: Attempt) -> None:
        staying = planning.leaving(at.context.topology, at.plan)
        cross_schema.require_uncrossed(at.source, at.plan, staying)

    def look_again(self, at: Attempt) -> None:
        """Check, before the decision, that every alias is still paused, and the source's lock held.

        The session that has just reported the replay position holds the target's lock. Raises
        PauseLost, NodeLost.
        """
        locked = partial(at.context.require_lock, at.plan.source)
        if at.round_trips.source and at.round_trips.pooler:
            fanout.at_once(locked, at.pauses.require_held)
        else:  # starting threads takes longer than the round trip that they would save
            locked()
            at.pauses.require_held()

    def behind(self, plan: MovePlan) -> tuple[str, ...]:
        """Return the names of the moved schemas behind the fence: the retired ones."""
        return plan.retired

    def tell_overtaken(self, context: MoveContext) -> None:
        """Report what sessions have changed on the source behind the fence: here they cannot."""


class LockedRename(Rename):
    """The rename under locks against writers, with a mark for the stream; all clients wait."""

    def prepare(self, context: MoveContext) -> None:
        """See that the structure is what was copied, and that nothing keeps its locks from it.

        Raises StructureChanged, FenceRefused.
        """
        plan = context.plan
        session = context.session(plan.source)
        found = journal.find(session, plan.id)
        if found is not None and found.state.undoable:
            stream_fence.prepare(session, plan.id, revision=found.revision)
        digest, known = stream_fence.known(session, plan.schemas)
        structure.require(context, digest, plan.schemas)
        context.own(Known, lambda: known)
        if holding := stream_fence.unyielding(session, plan.schemas):
            raise fence.FenceRefused(plan.source, "; ".join(holding[:3]))

    def put_up(self, at: Attempt) -> None:
        """Lock, rename and mark; with `--terminate`, end those who go on writing.

        Raises WritersLeft, FenceRefused, FenceTooLate, NotAtCutover.
        """

        def put_up(kept_s: float) -> None:
            stream_fence.put_up(
                at.source,
                at.plan.source,
                at.plan.id,
                at.plan.schemas,
                tables=at.tables,
                attempt=at.attempt,
                revision=at.budget.revision,
                deadline=at.budget.latest("drain") - kept_s,
                not_after=at.not_after,
            )

        at.without_writers(put_up)

    def drain(self, at: Attempt) -> None:
        """Wait as behind a rename, and for what is made there; then look at the structure again.

        Locks on tables catch no session that makes a table, grants a right or alters a function.
        What is on the source's disk then has all that the target needs. Raises StructureChanged,
        WritersLeft.
        """
        known = at.context.own(Known, Known)
        if known and (lsn := stream_fence.untouched(at.source, known)) is not None:
            at.lsn = lsn
            return
        self._look_closer(at)
        at.lsn = standbys.position(at.source)

    def _look_closer(self, at: Attempt) -> None:
        # A session reads there, or DDL has changed other shards: one query finds out which.
        found = stream_fence.left(at.source, at.plan.id, at.plan.retired)
        if not (found.busy or found.unlogged or found.changing):
            structure.require(at.context, found.digest, at.plan.retired)
            return
        self._await_writers(at)
        at.without_writers(lambda kept_s: self._await_changes(at, kept_s))
        # A session that the first look found may have changed something and ended since.
        self._require_uncrossed(at)
        structure.require_same(at.context, at.plan.retired)

    @staticmethod
    def _await_changes(at: Attempt, kept_s: float) -> None:
        """Wait for those who change objects there without a lock; raises WritersLeft."""
        deadline = at.budget.latest_after("drain") - kept_s
        while pids := structure_digest.changing(at.source, at.plan.retired):
            if time.monotonic() > deadline:
                raise fence.WritersLeft(at.plan.source, pids)
            time.sleep(_POLL_S)

    def look_again(self, at: Attempt) -> None:
        """Check that every alias is still paused, and both locks held, all at the same time.

        Raises PauseLost, NodeLost.
        """
        locks.require(at.context, beside=at.pauses.require_held)

    def tell_overtaken(self, context: MoveContext) -> None:
        """Report DDL that was open over the cutover without a lock, as CREATE FUNCTION is."""
        try:
            structure.require_same(context, context.plan.retired)
        except StructureChanged as error:
            context.notice(
                f"node {context.plan.source}: sessions committed DDL on the moved shards after the "
                f"cutover, which node {context.plan.target} does not have: "
                f"{listed(error.changed)}; run it there again"
            )

    def behind(self, plan: MovePlan) -> tuple[str, ...]:
        """Give the live names, which the target's copies have from the beginning."""
        return plan.schemas


_RENAME, _LOCKED_RENAME = Rename(), LockedRename()


def of(plan: MovePlan) -> Rename:
    """Return the fence of a move."""
    return _LOCKED_RENAME if plan.streams else _RENAME
