"""The publication of moved tables on their source, and the last look at what it would harm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.errors import together
from shardctl.moves.preflight import check as preflight
from shardctl.postgres.logical import publication

if TYPE_CHECKING:
    from shardctl.moves.context import MoveContext


def publish(context: MoveContext) -> None:
    """Publish the moved tables, as they are now.

    The preflight may be long ago, as before the copy of a large server. Raises what it refuses of
    the tables (a table without a replica identity would refuse its clients' UPDATE from now on),
    and publication_blocked.
    """
    plan = context.plan
    found = preflight.published(context.topology, plan, purpose=context.purpose)
    if found:
        raise together(found)
    with context.on(plan.source):
        session = context.session(plan.source)
        tables = publication.tables(session, plan.schemas)
        publication.create(session, plan.slot, tables, move=plan.id)
