"""Structure: the moved shards' schemas on the target, with tables and without rows or indexes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from shardctl.access import read_only
from shardctl.errors import Unfinished
from shardctl.moves import marks
from shardctl.moves import structure as structures
from shardctl.moves.step import Step
from shardctl.postgres import queries
from shardctl.postgres.logical import closing, stream_login, structure, subscription
from shardctl.postgres.logical.route import Route, end_sessions
from shardctl.state import journal
from shardctl.topology import ranges

if TYPE_CHECKING:
    from shardctl.moves.context import MoveContext
    from shardctl.moves.step import Probe

QUERIES = queries.load("shardctl.moves.steps", "stream_steps.sql")

MAKING = "making"
"""The target's mark from before the first schema is made: what is there then is this move's."""
MADE = "made"
"""The target's mark when it has the tables; the marks of later steps mean that, too."""
COPYING, INDEXING, INDEXED = "copying", "indexing", "indexed"


def has_mark(what: str) -> Probe:
    """Return a probe that sees whether a step has put its last mark on the target."""

    def probe(context: MoveContext) -> bool:
        if context.past_cutover():
            return True
        plan = context.plan
        with context.on(plan.target):
            return marks.seen(context.session(plan.target), plan.id, what)

    return probe


def run(context: MoveContext) -> None:
    """Make the tables; what an earlier attempt has made of them is dropped first."""
    plan = context.plan
    _drop(context)
    with context.on(plan.source):
        marks.forget(context.session(plan.source), plan.id)
        marks.note_timeline(context.session(plan.source), plan.id)
    with context.on(plan.target):
        marks.put(context.session(plan.target), plan.id, MAKING)
    structures.note(context)
    structure.make_tables(
        route(context), plan.schemas, major=newer_major(context), makers=makers(context)
    )
    with context.on(plan.target):
        there = context.session(plan.target)
        closing.withhold(there, plan.schemas, keep=context.topology.database.user)
        with context.on(plan.source):
            refuses = read_only.marks(context.session(plan.source), plan.schemas)
        if refuses:  # the copies get the triggers of a read-only shard, which call it
            there.execute(read_only.QUERIES["function"])
        copy_migrations(context)
        marks.put(there, plan.id, MADE)


def undo(context: MoveContext) -> None:
    """Drop the schemas on the target."""
    if not context.target_lost:
        _drop(context)


def route(context: MoveContext) -> Route:
    """Give from where to where the move copies; its sessions have the move's name."""
    return Route(context.source, context.target, context.topology.database, context.plan.slot)


def newer_major(context: MoveContext) -> int:
    """Give the newer major version of both servers."""
    nodes = (context.plan.source, context.plan.target)
    return max(context.session(node).info.server_version // 10_000 for node in nodes)


def makers(context: MoveContext) -> tuple[str, ...]:
    """List the owners of what is moved where only a role with CREATE can be given something."""
    plan = context.plan
    with context.on(plan.target):
        if not stream_login.is_needed(context.session(plan.target)):
            return ()
    with context.on(plan.source):
        return structure.owners(context.session(plan.source), plan.schemas)


def copy_migrations(context: MoveContext) -> None:
    """Write down on the target which migrations ran in the moved shards."""
    plan = context.plan
    there, given = context.session(plan.target), {"shards": list(plan.shards)}
    with context.on(plan.source):
        row = context.session(plan.source).execute(QUERIES["migrations"], given).fetchone()
    there.execute(QUERIES["forget_migrations"], given)
    there.execute(QUERIES["note_migrations"], {"rows": (row and row[0]) or []})


def require_unclaimed(context: MoveContext) -> None:
    """See that the target does not own the shards, and cannot claim them; raises Unfinished."""
    plan = context.plan
    with context.on(plan.target):
        there = context.session(plan.target)
        given = {"target": plan.target, "shards": list(plan.shards)}
        if there.execute(QUERIES["owned"], given).fetchone() is not None:
            raise Unfinished(
                f"node {plan.target}: its map gives it shards of move {plan.id}",
                hint="run `shardctl moves resume` to finish the move",
            )
        if marks.last(there, plan.id, marks.DECISION) is not None:
            raise Unfinished(
                f"node {plan.target}: it has the decision of move {plan.id}",
                hint="run `shardctl moves resume` to finish the move",
            )


def _drop(context: MoveContext) -> None:
    """Drop what this move has made on the target, and nothing of a shard that the target owns."""
    plan, slot = context.plan, context.plan.slot
    with context.on(plan.target):
        there = context.session(plan.target)
        if journal.find(there, plan.id) is None:
            return  # it is written before anything is made: schemas of these names are others'
        require_unclaimed(context)
        # Programs and copies of a killed shardctl go on without it.
        end_sessions(there, slot)
        subscription.drop(there, slot)
        # Marks of cutovers, too: after a failover of the source their attempts may come again.
        marks.forget(there, plan.id)
        structure.drop(there, plan.schemas)
        keep = context.topology.database.user
        closing.remove(there, plan.id, (), keep=keep, wanted=(), deadline=time.monotonic())
        there.execute(QUERIES["forget_migrations"], {"shards": list(plan.shards)})


STEP = Step(
    "structure",
    "makes the moved shards' tables on the target",
    has_mark(MADE),
    run,
    undo,
    leaves=lambda plan: f"copies of shards {ranges.of(plan.shards)}, which serve no client",
)
