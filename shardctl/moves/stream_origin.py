"""From where a stream goes on: the copy, and the one subscription that has followed since then.

PostgreSQL keeps with a subscription how far it has come. A second one on the same slot would apply
again what the first one has applied and not yet confirmed: so marks on the target say which
publication the copy has, and which subscription follows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.errors import Refused
from shardctl.moves import marks, standbys
from shardctl.moves.refusals import COPY_INSTEAD
from shardctl.postgres.logical import publication, subscription

if TYPE_CHECKING:
    from shardctl.moves.context import MoveContext
    from shardctl.moves.plan import MovePlan
    from shardctl.postgres.connection import Connection

_TIMELINE, _PUBLICATION, _OID, _LSN = "timeline", "publication", "oid", "lsn"


def note_copied(context: MoveContext, lsn: str | None = None) -> None:
    """Note on the target that it has the rows, and with which publication the stream goes on.

    `lsn` is where the stream begins on the source, of a copy that shows it.
    """
    plan = context.plan
    with context.on(plan.source):
        published = publication.oid(context.session(plan.source), plan.slot)
    with context.on(plan.target):
        there = context.session(plan.target)
        note = {_TIMELINE: standbys.timeline(there), _PUBLICATION: published, _LSN: lsn}
        marks.put(there, plan.id, marks.COPIED, note=note)


def begins_at(session: Connection, plan: MovePlan) -> str | None:
    """Give the source's position up to which the target has all; None where its slot shows it."""
    if plan.reverses is not None:
        # What came to the source by the move that is reversed must not come back.
        return plan.reverses.lsn
    noted = marks.last(session, plan.id, marks.COPIED) or {}
    found: str | None = noted.get(_LSN)
    return found


def begin(session: Connection, plan: MovePlan) -> None:
    """Let the target's subscription follow, and note in the same transaction that it does."""
    with session.transaction():
        subscription.enable(session, plan.slot)
        if not marks.seen(session, plan.id, marks.SUBSCRIBED):
            note = {_OID: subscription.oid(session, plan.slot)}
            marks.put(session, plan.id, marks.SUBSCRIBED, note=note)


def is_dropped(session: Connection, plan: MovePlan) -> bool:
    """Return whether the subscription that has followed is gone; another may have its name."""
    noted = marks.last(session, plan.id, marks.SUBSCRIBED)
    return noted is not None and bool(noted[_OID] != subscription.oid(session, plan.slot))


def is_copied(context: MoveContext) -> bool:
    """Return whether the target has the copy, from which its subscription can go on."""
    plan = context.plan
    with context.on(plan.target):
        there = context.session(plan.target)
        noted = marks.last(there, plan.id, marks.COPIED)
        # A promoted standby of the target may lack rows that the slot does not send again.
        if noted is None or noted.get(_TIMELINE) != standbys.timeline(there):
            return False
        if is_dropped(there, plan):
            return False
    with context.on(plan.source):
        return publication.oid(context.session(plan.source), plan.slot) == noted.get(_PUBLICATION)


def require_subscription(session: Connection, plan: MovePlan) -> None:
    """See that the subscription that has followed is there; raises subscription_gone."""
    if is_dropped(session, plan):
        raise _lost(
            plan,
            Refused(
                "subscription_gone",
                f"node {plan.target}: subscription {plan.slot} was dropped after it had begun to "
                f"follow node {plan.source}, and its position in the stream is lost with it",
            ),
        )


def require_publication(context: MoveContext) -> None:
    """See that the source has the publication with which it was copied; raises publication_gone."""
    plan = context.plan
    with context.on(plan.target):
        noted = marks.last(context.session(plan.target), plan.id, marks.COPIED)
    with context.on(plan.source):
        published = publication.oid(context.session(plan.source), plan.slot)
    if noted is not None and noted.get(_PUBLICATION) != published:
        raise _lost(
            plan,
            Refused(
                "publication_gone",
                f"node {plan.source}: publication {plan.slot} of the move was dropped, and the "
                "stream cannot go on with another one",
            ),
        )


def require_copy(session: Connection, plan: MovePlan) -> None:
    """Check that the target is the server that has the copy, and its subscription is there.

    A promoted standby of it may lack rows that the source does not send again. Raises
    target_promoted, copy_unknown, subscription_gone.
    """
    copied = marks.last(session, plan.id, marks.COPIED)
    if copied is None:
        raise _lost(
            plan,
            Refused(
                "copy_unknown",
                f"node {plan.target}: its rows of move {plan.id} in shardctl.stream were deleted, "
                "so what it has is unknown",
            ),
        )
    if copied.get(_TIMELINE) != standbys.timeline(session):
        raise _lost(
            plan,
            Refused(
                "target_promoted",
                f"node {plan.target}: the server was promoted after move {plan.id} copied to it, "
                "so it may lack rows",
            ),
        )
    require_subscription(session, plan)


def _lost(plan: MovePlan, error: Refused) -> Refused:
    """Hint at what copies the shards again; that ends a reverse, which makes no copy."""
    error.resumable = plan.reverses is None
    error.hint = "run `shardctl moves resume`: shardctl copies the shards again"
    if plan.reverses is not None:
        error.hint = f"run `shardctl moves abort {plan.id}`, then {COPY_INSTEAD}"
    return error
