"""What the sub-steps of a cutover do when the target owns the shards; see `cutover.py`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from shardctl.access import fence
from shardctl.errors import ShardctlError, together
from shardctl.moves import blocks, claims, file, sub_steps, undoing
from shardctl.moves.budget import REST_S
from shardctl.moves.context import Use
from shardctl.moves.gate import PauseFailed, PauseLost
from shardctl.state import cluster, events, journal
from shardctl.topology import ranges

if TYPE_CHECKING:
    from shardctl.moves.attempt import Attempt
    from shardctl.moves.context import MoveContext
    from shardctl.topology.model import Node

_CLOSE_S = 1.0
"""How long the source's schemas are tried to be renamed against DDL, while readers wait."""


def pause_readers(at: Attempt) -> None:
    """Pause the poolers when the target owns the shards: clients behind them are to read there.

    A transaction that goes on until the guards fire holds up no client; it only reads.
    """
    at.gates.await_logins()
    try:
        # The guards on the poolers' hosts fire that much after the budget's end.
        sub_steps.hold(at, at.budget.deadline + undoing.GUARD_LAG_S - REST_S)
    except (PauseFailed, PauseLost) as error:
        at.context.notice(f"{error.message}; they only read, and have to begin anew")


def close_source(at: Attempt) -> None:
    """Rename the moved schemas on the source, which has only refused writes; repeatable.

    Until now it has given out ids to all who asked for one, so those of the target are raised
    above them. Raises FenceRefused.
    """
    context, plan = at.context, at.plan
    with context.on(plan.source):
        fence.close(at.source, plan.source, plan.id, deadline=time.monotonic() + _CLOSE_S)
        drawn = blocks.drawn(context, at.source)
    with context.on(plan.target):
        blocks.raise_above(context, context.session(plan.target, Use.lock), drawn)


def route(at: Attempt) -> None:
    """Serve the clients from the target, and note how long they were not served."""
    gates, timeline = at.gates, at.context.timeline
    if at.began and at.budget.left() > 0:
        gates.route()
    else:  # guards have been at work, and may be still
        gates.settle()
    now = gates.served_at or time.monotonic()
    if gates.held_at is not None:
        timeline.pause_ms = (now - gates.held_at) * 1000
    if at.began and at.fence.refuses_writes:
        timeline.refused_ms = (now - at.fencing_at) * 1000


def serve(at: Attempt) -> None:
    """See that clients that waited have connections, and report those that have none."""
    if left := at.gates.await_served():
        at.context.notice(f"clients still wait for a connection: {', '.join(left[:5])}")
    for gate in at.gates.all:
        if gate.cancelled:
            at.context.notice(
                f"pooler {gate.pooler.name}: a client cancelled a statement on "
                f"{', '.join(gate.cancelled[:5])} while PAUSE waited for it; right after the "
                "pause, other clients there may have got 08P01 (server login has been failing), "
                "and PgBouncer executed nothing of their requests"
            )


def spread_map(context: MoveContext) -> None:
    """Write the new owners to every other node that has a map, and the journal to the source.

    A node without shards may be missing, and so may a source that is lost. Raises what could not
    be written, when all else was.
    """
    plan = context.plan
    errors: list[ShardctlError] = []
    for node in context.topology.nodes.values():
        if node.name == plan.target or (node.name == plan.source and context.source_lost):
            continue
        try:
            with context.on(node.name):
                _tell(context, node)
        except ShardctlError as error:
            if node.shards or node.name == plan.source:
                errors.append(error)
    if errors:
        raise together(errors)
    told = context.journal()
    if told is not None and plan.source in context.keepers:
        with context.on(plan.source):
            journal.copy(context.session(plan.source), told)


def _tell(context: MoveContext, node: Node) -> None:
    """Write the new owners into a node's map, unless that is newer or the node none of ours."""
    plan, version = context.plan, context.plan.map_version + 1
    session = context.session(node.name)
    if not cluster.is_present(session):
        return
    row = cluster.read(session)
    if row is None or (row.cluster, row.node) != (context.topology.cluster, node.name):
        return
    with session.transaction():
        # A process that was stopped for days must not bring back what was true then.
        if not claims.is_older_map(session, version):
            return
        claims.write_map(session, plan)
        cluster.set_map_version(session, version)
        if row.map_version < version and node.name != plan.source:
            told = f"move {plan.id}: shards {ranges.of(plan.shards)} are on {plan.target}"
            events.record(session, "move-shards", told)


def write_file(context: MoveContext) -> None:
    """Write the topology file if that can be done now: `retire` tries again, and raises the error.

    Raised here it would end this process, and with it the snapshot for the comparison.
    """
    try:
        file.write(context.topology, context.plan, context.after)
    except file.FileNotEdited as error:
        context.notice(f"{error.message}; shardctl compares the rows, then tries again")
