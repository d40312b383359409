"""Carry out a node's plan: preparation, shared objects, shards in chunks, the map."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from shardctl import fanout
from shardctl.ids import generator
from shardctl.ids.layout import Layout
from shardctl.postgres import queries
from shardctl.postgres.connection import NodeUnavailable, connect
from shardctl.provision import chunks
from shardctl.provision.observe import connect_for_maintenance
from shardctl.state import cluster, events, format, lock  # noqa: A004  # the module's noun

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence

    from shardctl.fanout import Outcome, Progress
    from shardctl.postgres.connection import Connection
    from shardctl.provision.chunks import Retrying
    from shardctl.provision.plan import NodePlan
    from shardctl.topology.model import Node, ShardId, Topology

logger = logging.getLogger(__name__)
QUERIES = queries.load("shardctl.provision", "apply.sql")

_RENUMBERED_AT_ONCE = 200
_LARGEST_CHUNK = 50
"""Shards a transaction: more gain nothing (measured), and a failure would undo more."""


@dataclass(frozen=True, slots=True)
class Applied:
    """What came of a node's plan: the shards that are not finished, and every error met."""

    left: tuple[ShardId, ...]
    errors: tuple[Exception, ...]


def prepare(topology: Topology, plan: NodePlan, *, command: str) -> None:
    """Make the roles and the database that are missing; what is already there is left alone."""
    if not plan.roles and not plan.database:
        return
    node = topology.nodes[plan.node]
    with connect_for_maintenance(topology, node, lock.purpose(command)) as connection:
        for role in plan.roles:
            statement = sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(role))
            _create(connection, statement, node)
        if plan.database:
            name = sql.Identifier(topology.database.name)
            _create(connection, sql.SQL("CREATE DATABASE {}").format(name), node)


def _create(connection: Connection, statement: sql.Composed, node: Node) -> None:
    logger.info("node %s: %s", node.name, statement.as_string())
    try:
        connection.execute(statement)
    except (psycopg.errors.DuplicateObject, psycopg.errors.DuplicateDatabase):
        # Somebody else was quicker; what follows is done under the node's lock.
        logger.info("node %s: it is there already", node.name)
    except psycopg.errors.UniqueViolation:
        logger.info("node %s: somebody else makes it at this moment", node.name)


def take_lock(topology: Topology, node: Node, *, command: str) -> Connection:
    """Open the session that holds the node's lock; closing it lets go. Raises NodeLocked."""
    connection = connect(node, topology.database, purpose=lock.purpose(command), autocommit=True)
    try:
        lock.take(connection, node.name)
    except BaseException:
        connection.close()
        raise
    return connection


def apply(
    topology: Topology,
    plan: NodePlan,
    *,
    command: str,
    jobs: int,
    retrying: Retrying,
    progress: Progress,
    stop: threading.Event,
) -> Applied:
    """Carry out `plan` on its node, over `jobs` sessions; the caller holds the node's lock.

    Whatever the database refuses is in the result. Where a chunk of shards fails the others
    are done all the same; the map is written only when all shards are there.
    """
    node = topology.nodes[plan.node]
    left = {work.shard for work in plan.shards}
    errors: list[Exception] = []
    try:
        with ExitStack() as stack:
            width = max(1, min(jobs, len(plan.shards)))
            sessions = [
                stack.enter_context(connect(node, topology.database, purpose=lock.purpose(command)))
                for _ in range(width)
            ]
            if plan.from_classic:
                _renumber(sessions[0], topology, node)
            _make_shared(sessions[0], topology, plan)
            for outcome in _apply_shards(
                topology, plan, sessions, retrying=retrying, progress=progress, stop=stop
            ):
                if outcome.error is None:
                    left -= {work.shard for work in outcome.item}
                else:
                    errors.append(outcome.error)
        with connect(node, topology.database, purpose=lock.purpose(command)) as connection:
            if not left and plan.map_version is not None:
                cluster.write_map(connection, topology, topology.owners())
                cluster.set_map_version(connection, plan.map_version)
            events.record(
                connection, command, f"unfinished: {len(left)} shards" if left else "done"
            )
    except (psycopg.Error, NodeUnavailable) as error:
        errors.append(error)
    return Applied(tuple(sorted(left)), tuple(errors))


def _renumber(connection: Connection, topology: Topology, node: Node) -> None:
    """Bring registers to their counters' blocks, which the classic generator left behind.

    Block numbers wrap around: one that is more than half of them behind would seem ahead, and
    `next_id()` would draw until it is not. Times stay as they are. In parts, for each sequence
    takes an entry of the lock table.
    """
    layout = Layout.of(topology.id)
    for first in range(0, len(node.shards), _RENUMBERED_AT_ONCE):
        part = node.shards[first : first + _RENUMBERED_AT_ONCE]
        connection.execute(
            QUERIES["renumber"],
            {
                "schemas": [topology.schema(shard) for shard in part],
                "counter": generator.COUNTER,
                "register": generator.REGISTER,
                "sequence_bits": layout.sequence_bits,
                "time_bits": layout.usable_time_bits,
                "time_mask": (1 << layout.usable_time_bits) - 1,
                "block_mask": (1 << 63 - layout.usable_time_bits) - 1,
            },
        )
        connection.commit()


def _make_shared(connection: Connection, topology: Topology, plan: NodePlan) -> None:
    """Make schema shardctl, its functions and their grants, in one transaction."""
    if plan.from_format is not None:
        for script in format.scripts(plan.from_format):
            connection.execute(script.encode())
        if plan.from_format == 0:
            cluster.make(connection, topology, plan.node)
    if plan.functions:
        connection.execute(generator.render(topology.id, topology.id.generator).encode())
        cluster.set_generator(connection, topology.id.generator)
    # Functions that were just made have no grants yet, whoever had them before.
    for role in topology.database.app_roles if plan.functions else plan.grant_to:
        connection.execute(
            sql.SQL(
                "GRANT CONNECT ON DATABASE {database} TO {role};"
                "GRANT USAGE ON SCHEMA shardctl TO {role};"
                "GRANT SELECT ON shardctl.cluster, shardctl.map TO {role};"
                "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA shardctl TO {role};"
            ).format(database=sql.Identifier(topology.database.name), role=sql.Identifier(role))
        )
    connection.commit()


def _apply_shards(
    topology: Topology,
    plan: NodePlan,
    sessions: Sequence[Connection],
    *,
    retrying: Retrying,
    progress: Progress,
    stop: threading.Event,
) -> list[Outcome[chunks.Chunk, int]]:
    """Work through the shards in chunks; the first one alone tells how many locks one takes."""
    if not plan.shards:
        return []
    progress.expect(plan.node, "shards", len(plan.shards))
    free = [chunks.Job(session, topology, plan.node, retrying) for session in sessions]

    def work(chunk: chunks.Chunk) -> int:
        job = free.pop()  # list.pop and append are atomic
        try:
            return chunks.run(job, chunk)
        finally:
            free.append(job)
            progress.advance(plan.node, len(chunk))

    first, rest = plan.shards[:1], plan.shards[1:]
    outcomes = fanout.run([first], work, width=1, stop=stop)
    locks = outcomes[0].value if outcomes else None
    size = chunks.size(plan.lock_slots, len(sessions), locks, largest=_LARGEST_CHUNK)
    parts = [rest[i : i + size] for i in range(0, len(rest), size)]
    return outcomes + fanout.run(parts, work, width=len(sessions), stop=stop)
