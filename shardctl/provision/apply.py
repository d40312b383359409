"""Carry out a node's plan: preparation, shared objects, shards in chunks, the map."""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from shardctl import fanout
from shardctl.errors import Incomplete, Refused, ShardctlError
from shardctl.ids import generator
from shardctl.libpq import reason_of
from shardctl.postgres import blocking, catalog, patient
from shardctl.postgres.connection import NodeLost, NodeUnavailable, connect, is_lost
from shardctl.provision import chunks
from shardctl.provision.chunks import Job, ShardFailed
from shardctl.provision.observe import connect_for_maintenance
from shardctl.state import cluster, events, lock
from shardctl.topology import ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from shardctl.fanout import Progress
    from shardctl.postgres.blocking import Holder
    from shardctl.postgres.connection import Connection, Running
    from shardctl.provision.plan import NodePlan, Options, ShardWork
    from shardctl.topology.model import NodeName, ShardId, Topology


logger = logging.getLogger(__name__)

PATIENCE_S = 1.0
"""How long a session waits before its blocker is reported."""


@contextmanager
def watching(
    node: NodeName,
    opened: Callable[[], Connection],
    notice: Callable[[str], None],
    sessions: Sequence[Connection],
) -> Iterator[None]:
    """Report during the block who holds locks that `sessions` wait for; more may be added to them.

    That is looked for from a session of its own, opened after a second.
    """
    ended = threading.Event()

    def watch() -> None:
        reported: set[Holder] = set()
        seen: set[Holder] = set()
        if ended.wait(PATIENCE_S):
            return
        try:
            with opened() as session:
                while not ended.is_set():
                    ours = [one.info.backend_pid for one in list(sessions) if not one.closed]
                    now = {holder for _, holder in blocking.holders(session, ours)}
                    # A transaction that blocks twice is not a short one.
                    for holder in (now & seen) - reported:
                        notice(f"node {node}: waits for a lock of {holder}")
                    reported |= now & seen
                    seen |= now
                    ended.wait(PATIENCE_S)
        except (psycopg.Error, NodeUnavailable) as error:
            logger.info("node %s: cannot find out which sessions hold locks: %s", node, error)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def node_unfinished(node: str, planned: int, left: Collection[int]) -> Incomplete:
    """Report what was begun on a node and not finished there."""
    rest = f"shards {ranges.of(left)}" if left else "the objects that all shards share"
    return Incomplete(
        "node_unfinished",
        f"node {node}: {planned - len(left):,} of {planned:,} shards are finished; {rest} remain",
        hint="run the same command again: it does only the rest",
    )


def as_ours(node: str, error: Exception) -> ShardctlError:
    """Name the node in an error of its database; any other error is a bug, and is raised."""
    if isinstance(error, ShardctlError):
        return error
    if isinstance(error, psycopg.Error) and is_lost(error):
        return NodeLost(node, reason_of(error))
    if isinstance(error, psycopg.Error):
        return Refused(
            "node_failed",
            f"node {node}: {reason_of(error)}",
            hint="fix the cause, then run the same command again",
        )
    raise error


def prepare(
    topology: Topology, plan: NodePlan, *, command: str, made: Callable[[], object]
) -> None:
    """Make the roles and the database that are missing; what exists is left alone.

    Calls `made` for each that was made.
    """
    if not plan.roles and not plan.database:
        return
    node, database = topology.nodes[plan.node], topology.database
    with connect_for_maintenance(topology, node, lock.purpose(command)) as connection:
        for role in plan.roles:
            connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(role)))
            made()
        if not plan.database:
            return
        named = {"name": sql.Identifier(database.name)}
        connection.execute(sql.SQL("CREATE DATABASE {name}").format(**named))
        made()
        # No role may log in but its owner and those that get the right to.
        connection.execute(sql.SQL("REVOKE CONNECT ON DATABASE {name} FROM PUBLIC").format(**named))
        # Streams log in as this role; it is not there where only clones are moved, or nothing yet.
        named["role"] = sql.Identifier(database.replication_user)
        with suppress(psycopg.errors.UndefinedObject):
            connection.execute(
                sql.SQL("GRANT CONNECT ON DATABASE {name} TO {role}").format(**named)
            )
    with connect(node, database, purpose=lock.purpose(command)) as session:
        # Only owners make functions there, as on servers of 15 and newer.
        session.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")


def apply(
    topology: Topology,
    plan: NodePlan,
    *,
    command: str,
    options: Options,
    progress: Progress,
    stop: threading.Event,
    running: Running,
) -> list[ShardctlError]:
    """Carry out `plan` on its node, over several sessions; the caller holds the node's lock.

    Gives what the database refused, each cause once, then how much is left. Where a shard fails the
    rest are done all the same; where a session does, by the others. The map is not written: see
    `write_map`.
    """
    left = {work.shard for work in plan.shards}
    errors: list[Exception] = []
    failed: dict[ShardId, ShardctlError] = {}

    def opened() -> Connection:
        node, purpose = topology.nodes[plan.node], lock.purpose(command)
        return connect(node, topology.database, purpose=purpose, autocommit=True)

    def carry_out(jobs: Sequence[Job], parts: Iterable[Sequence[ShardWork]]) -> None:
        waiting = iter(list(parts))  # threads share it: a list's next is atomic

        def work(job: Job) -> None:
            while not (stop.is_set() or job.connection.closed) and (chunk := next(waiting, None)):
                try:
                    failed_here = chunks.run(job, tuple(chunk))
                finally:
                    progress.advance(plan.node, len(chunk))
                failed.update(failed_here)
                left.difference_update({work.shard for work in chunk} - failed_here.keys())

        ended = fanout.run(jobs, work, width=len(jobs), stop=stop)
        errors.extend(one.error for one in ended if one.error)

    try:
        with ExitStack() as stack:
            sessions = [stack.enter_context(opened())]
            stack.enter_context(watching(plan.node, opened, running.notice, sessions))
            _make_shared(sessions[0], topology, plan, command)
            width = max(1, min(options.jobs, len(plan.shards)))
            sessions += [stack.enter_context(opened()) for _ in range(width - 1)]
            jobs = [Job(one, topology, plan.node, options, stop, running) for one in sessions]
            # The one with the most to do is first, alone, and shows how many locks a shard takes.
            todo = sorted(plan.shards, key=lambda w: (not w.create, -len(w.migrations)))
            if todo:
                phase = "creating" if todo[0].create else "migrating"
                progress.expect(plan.node, phase, len(todo), "shards")
            room = 2 * patient.lockable(sessions[0])  # half of the lock table
            carry_out(jobs[:1], [todo[:1]])
            carry_out(jobs, patient.chunks(todo[1:], chunks.size(room, width, jobs[0].locks)))
            errors += failed.values()
            with opened() as last:
                for result in _results(plan, left, failed):
                    events.record(last, command, result)
                events.record(last, command, f"unfinished: {len(left)}" if left else "done")
    except (psycopg.Error, ShardctlError) as error:
        errors.append(error)
    causes: dict[str, ShardctlError] = {}
    for one in (as_ours(plan.node, cause) for cause in errors):
        causes.setdefault(one.cause if isinstance(one, ShardFailed) else one.message, one)
    if not causes and not left:
        return []
    return [*causes.values(), node_unfinished(plan.node, len(plan.shards), left)]


def _results(
    plan: NodePlan, left: Collection[ShardId], failed: Mapping[ShardId, ShardctlError]
) -> list[str]:
    """Give an event of each file that ran, and of each that failed; no value of a row is in it."""
    shards: dict[str, list[ShardId]] = {}
    for work in plan.shards:
        for file in work.migrations if work.shard not in left else ():
            shards.setdefault(f"ran: {file.name}", []).append(work.shard)
    for shard, error in failed.items():
        where = error.where if isinstance(error, ShardFailed) and error.where else error.code
        shards.setdefault(f"failed: {where}", []).append(shard)
    return [f"{what} in shards {ranges.of(here)}" for what, here in shards.items()]


def write_map(topology: Topology, plan: NodePlan, *, command: str) -> None:
    """Write the whole map to a node, when the shards of all nodes exist.

    Before, a map with a version would claim of another node what is not true yet. That of a move
    which has ended meanwhile stays. Raises psycopg.Error, NodeUnavailable.
    """
    if plan.map_version is None:
        return
    node = topology.nodes[plan.node]
    with connect(node, topology.database, purpose=lock.purpose(command)) as connection:
        if cluster.replace_map(connection, topology, topology.owners(), plan.map_version):
            events.record(connection, command, f"map version {plan.map_version}")


def _make_shared(connection: Connection, topology: Topology, plan: NodePlan, command: str) -> None:
    """Make schema shardctl, its functions and their grants, in one transaction."""
    roles = topology.database.app_roles
    with connection.transaction():
        if plan.schema:
            connection.execute(cluster.ddl().encode())
            cluster.make(connection, topology, plan.node)
        events.record(connection, command, "begun")
        if plan.functions:
            script = generator.render(
                topology.id, topology.id.generator, topology.shard_count, topology.key_rule
            )
            connection.execute(script.encode())
            cluster.set_generator(connection, topology.id.generator)
        # Functions that were just made have no grants yet, even if roles had them before.
        for role in roles if plan.functions else plan.grant_to:
            connection.execute(
                sql.SQL(
                    "GRANT CONNECT ON DATABASE {database} TO {role};"
                    "GRANT USAGE ON SCHEMA shardctl TO {role};"
                    "GRANT SELECT ON shardctl.cluster, shardctl.map TO {role};"
                    "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA shardctl TO {role};"
                ).format(database=sql.Identifier(topology.database.name), role=sql.Identifier(role))
            )
        # A GRANT by a role without the right to it is only a warning.
        granted = plan.grant_to or plan.functions
        if granted and (lacking := catalog.read_ungranted(connection, roles)):
            raise Incomplete(
                "grant_without_effect",
                f"node {plan.node}: {', '.join(lacking)} could not be granted all rights "
                "that applications need",
                hint=f"let the owner of database {topology.database.name} grant CONNECT on it; "
                "then run the command again",
            )
