"""Indexes: all that the copies need beside their rows; then they refuse every write."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from shardctl.errors import ShardctlError
from shardctl.moves import held_wal, marks
from shardctl.moves import structure as structures
from shardctl.moves.step import Step
from shardctl.moves.steps import copy
from shardctl.moves.steps.structure import (
    INDEXED,
    INDEXING,
    has_mark,
    makers,
    newer_major,
    route,
)
from shardctl.postgres.logical import closing, publication, structure
from shardctl.postgres.logical.route import end_sessions

if TYPE_CHECKING:
    from shardctl.moves.context import MoveContext

logger = logging.getLogger(__name__)

_JOBS = 4
_AT_ONCE = 50


def run(context: MoveContext) -> None:
    """Make indexes, constraints and triggers, close the copies, and gather statistics."""
    plan = context.plan
    with context.on(plan.target):
        there = context.session(plan.target)
        begun = marks.seen(there, plan.id, INDEXING)
    if begun:  # some are there, and pg_restore does not know which
        copy.run(context)
    with context.on(plan.target):
        marks.put(there, plan.id, INDEXING)
        with (
            structures.explaining(context),
            held_wal.shown(context, gone=lambda: _end(context)) as shown,
            held_wal.slot_required(context),
        ):
            shown.expect(plan.target, "making indexes", 0)
            structure.make_rest(
                route(context),
                plan.schemas,
                major=newer_major(context),
                jobs=_JOBS,
                makers=makers(context),
            )
            closing.close(there, plan.id, plan.schemas, keep=context.topology.database.user)
            shown.expect(plan.target, "gathering statistics", 0)
            _gather_statistics(context)
        marks.put(there, plan.id, INDEXED)


def _end(context: MoveContext) -> None:
    """End the programs that make indexes for a stream that cannot go on; in another thread."""
    way = route(context)
    try:
        with way.connect(context.target) as session:
            end_sessions(session, way.name)
    except (ShardctlError, psycopg.Error) as error:
        logger.info("move %s: %s", context.plan.id, error)


def _gather_statistics(context: MoveContext) -> None:
    """Let the planner know the copies: no vacuum touches them until clients are served."""
    plan = context.plan
    there = context.session(plan.target)
    tables = publication.tables(there, plan.schemas)
    for first in range(0, len(tables), _AT_ONCE):
        some = tables[first : first + _AT_ONCE]
        names = sql.SQL(", ").join(sql.Identifier(*table) for table in some)
        there.execute(sql.SQL("ANALYZE {}").format(names))


STEP = Step(
    "indexes", "makes indexes and constraints, and closes the copies", has_mark(INDEXED), run
)
