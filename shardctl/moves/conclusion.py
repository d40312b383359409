"""The sub-steps of a cutover once the target owns the shards; see `cutover.py`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from shardctl.errors import ShardctlError, together
from shardctl.moves import claims, file
from shardctl.postgres import queries
from shardctl.postgres.connection import NodeLost, NodeUnavailable
from shardctl.state import cluster, events, journal

if TYPE_CHECKING:
    from shardctl.moves.attempt import Attempt
    from shardctl.moves.context import MoveContext
    from shardctl.topology.model import NodeName, ShardId


def route(at: Attempt) -> None:
    """Route the clients to the target, and record how long they waited."""
    pauses, timeline = at.pauses, at.context.timeline
    if at.began and at.budget.left() > 0:
        pauses.route()
    else:  # guards may have routed already, or may be routing now
        pauses.settle()
    now = pauses.served_at or time.monotonic()
    if pauses.held_at is not None:
        timeline.pause_ms = (now - pauses.held_at) * 1000


def serve(at: Attempt) -> None:
    """Wait until waiting clients have connections, and report aliases whose clients have none."""
    if left := at.pauses.await_served():
        at.context.notice(f"clients are still waiting for a connection: {', '.join(left[:5])}")
    for paused in at.pauses.all:
        if paused.cancelled:
            at.context.notice(
                f"pooler {paused.pooler.name}: a client cancelled a statement on "
                f"{', '.join(paused.cancelled[:5])} while PAUSE waited for it; right after the "
                "pause, PgBouncer may have rejected requests of other clients with 08P01 (server "
                "login has been failing) without executing them"
            )


def spread_map(context: MoveContext) -> None:
    """Write the target's map to every other node that has one, and the journal to the source.

    A node that is away keeps its older map, until `init` or the next move of its shards; so does a
    lost source. Raises what could not be written, after writing the rest.
    """
    plan = context.plan
    errors: list[ShardctlError] = []
    with context.on(plan.target):
        session = context.session(plan.target)
        version = queries.one(session, "SELECT map_version FROM shardctl.cluster")[0]
        owners = cluster.read_map(session)
    for node in context.topology.nodes.values():
        if node.name == plan.target or (node.name == plan.source and context.source_lost):
            continue
        try:
            with context.on(node.name):
                write_map(context, node.name, owners, version)
        except ShardctlError as error:
            if node.name == plan.source:
                errors.append(error)
            elif node.shards and isinstance(error, NodeLost | NodeUnavailable):
                context.notice(
                    f"{error.message}; its map stays at an older version until `shardctl init`"
                )
            elif node.shards:
                errors.append(error)
    if errors:
        raise together(errors)
    known = context.journal()
    if known is not None and plan.source in context.journal_nodes:
        with context.on(plan.source):
            journal.copy(context.session(plan.source), known)


def write_map(
    context: MoveContext, node: NodeName, owners: dict[ShardId, NodeName], version: int
) -> None:
    """Write the whole map to a node, unless its own is newer or of another cluster.

    The node may have missed earlier moves.
    """
    session = context.session(node)
    if not cluster.is_present(session):
        return
    row = cluster.read(session)
    if row is None or (row.cluster, row.node) != (context.topology.cluster, node):
        return
    with session.transaction():
        # A process that was suspended for days must not write an outdated map.
        if not claims.is_older_map(session, version):
            return
        cluster.write_map(session, context.topology, owners)
        cluster.set_map_version(session, version)
        if row.map_version < version:
            result = f"move {context.plan.id}: map version {version}"
            events.record(session, "move-shards", result)


def write_file(context: MoveContext) -> None:
    """Write the topology file if possible: `retire` tries again, and raises the error.

    An error here would end this process, and with it the snapshot for the comparison.
    """
    try:
        file.write(context.topology, context.plan, context.after)
    except file.FileNotEdited as error:
        context.notice(f"{error.message}; shardctl compares the rows, then tries again")
