"""Whether a clone that was promoted early may be deleted: it must have no decision."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from shardctl.errors import Incomplete
from shardctl.moves import cloned, marks, standbys
from shardctl.moves.context import NodeRefused
from shardctl.moves.steps import structure
from shardctl.postgres import clone as clones
from shardctl.postgres.connection import NodeLost, NodeUnavailable

if TYPE_CHECKING:
    from shardctl.moves.context import MoveContext

logger = logging.getLogger(__name__)

_BEGUN, _TIMELINE = "begun", "timeline"
"""The source's mark behind the slot, and its note: the timeline of the source's server."""


def note(context: MoveContext) -> None:
    """Put a mark on the source behind its slot, which shows which server the clone follows."""
    plan = context.plan
    with context.on(plan.source):
        session = context.session(plan.source)
        marks.put(session, plan.id, _BEGUN, note={_TIMELINE: standbys.timeline(session)})


def require(context: MoveContext) -> None:
    """See that the clone has no decision, before it is deleted.

    Raises Unfinished where it has one or owns the shards, and clone_unasked where that is unknown.
    """
    if not _may_serve(context):
        return
    try:
        structure.require_unclaimed(context)
    except (NodeUnavailable, NodeLost, NodeRefused) as error:
        _require_same_source(context)
        logger.info("move %s: %s", context.plan.id, error.message)


def _may_serve(context: MoveContext) -> bool:
    """Return whether the clone may have been promoted."""
    clone = cloned.of(context)
    try:
        there = clones.look(clone) in ("made", "opened")
    except (clones.TargetNotEmpty, clones.CloneOfAnother):
        return False
    return there and clones.recovers_to(clone) is not None


def _require_same_source(context: MoveContext) -> None:
    """See that the source is the server that the clone follows; raises clone_unasked.

    Then its journal, under its lock, proves that nothing was decided.
    After a failover the decision may be lost there, and a clone that does not answer may have it.
    """
    plan = context.plan
    with context.on(plan.source):
        session = context.session(plan.source)
        begun = marks.last(session, plan.id, _BEGUN) or {}
        if begun.get(_TIMELINE) == standbys.timeline(session):
            return
    raise Incomplete(
        "clone_unasked",
        f"node {plan.source} has a new timeline, as after a failover, and node {plan.target} does "
        "not answer: it may own the shards",
        hint=f"start node {plan.target}, then run `shardctl moves abort {plan.id}`",
    )
