"""Carry out a node's plan: preparation, shared objects, shards in chunks, the map."""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import psycopg
from psycopg import sql

from shardctl import fanout
from shardctl.errors import Incomplete, ShardctlError
from shardctl.ids import generator
from shardctl.postgres import blocking, catalog, patient
from shardctl.postgres.connection import NodeUnavailable, connect
from shardctl.provision import chunks
from shardctl.provision.chunks import Job, Retrying, ShardFailed
from shardctl.provision.observe import QUERIES, connect_for_maintenance
from shardctl.state import cluster, events, lock
from shardctl.topology import ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from shardctl.fanout import Outcome, Progress
    from shardctl.postgres.blocking import Holder
    from shardctl.postgres.connection import Connection, Running
    from shardctl.provision.plan import NodePlan, ShardWork
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
    """Report during the block who holds locks that `sessions` wait for; threads add to them.

    That is looked for from a session of its own, opened after a second.
    """
    ended = threading.Event()
    thread = threading.Thread(target=_watch, args=(ended, node, opened, notice, sessions))
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _watch(
    ended: threading.Event,
    node: NodeName,
    opened: Callable[[], Connection],
    notice: Callable[[str], None],
    sessions: Sequence[Connection],
) -> None:
    reported: set[Holder] = set()
    seen: set[Holder] = set()
    if ended.wait(PATIENCE_S):
        return
    try:
        with opened() as session:
            session.autocommit = True
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


Value = TypeVar("Value")
Ran = tuple[int | None, "dict[ShardId, ShardctlError]"]

_LARGEST_CHUNK = 50
"""Shards a transaction: more gain nothing (measured), and a failure repeats the others."""


@dataclass(frozen=True, slots=True)
class Applied:
    """What came of a node's plan: the shards that are not finished, and every error met."""

    left: tuple[ShardId, ...]
    errors: tuple[Exception, ...]


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
        lacks = QUERIES["lacks_connect"], [database.replication_user] * 2
        if connection.execute(*lacks).fetchone() is not None:
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
    jobs: int,
    retrying: Retrying,
    progress: Progress,
    stop: threading.Event,
    running: Running,
) -> Applied:
    """Carry out `plan` on its node, over `jobs` sessions; the caller holds the node's lock.

    Whatever the database refuses is in the result. Where a shard fails the rest are done all
    the same. The map is not written: see `write_map`.
    """
    node = topology.nodes[plan.node]
    left = {work.shard for work in plan.shards}
    errors: list[Exception] = []
    failed_shards: dict[ShardId, ShardctlError] = {}
    try:
        with ExitStack() as stack:

            def opened() -> Connection:
                return connect(node, topology.database, purpose=lock.purpose(command))

            def session() -> Connection:
                one = stack.enter_context(opened())
                sessions.append(one)
                return one

            sessions: list[Connection] = []
            stack.enter_context(watching(node.name, opened, running.notice, sessions))
            first = session()
            _make_shared(first, topology, plan, command)
            jobs = max(1, min(jobs, len(plan.shards)))
            free = [
                Job(one, topology, plan.node, retrying, stop, running)
                for one in (first, *(session() for _ in range(jobs - 1)))
            ]
            for outcome in _apply_shards(plan, free, session, progress):
                if outcome.error is None:
                    _, failed_here = outcome.result()
                    left -= {work.shard for work in outcome.item} - failed_here.keys()
                    failed_shards |= failed_here
                else:
                    errors.append(outcome.error)
            errors += failed_shards.values()
            ready = [work for work in plan.shards if work.shard not in left]
            for shard, error in _validate(ready, free, session, progress):
                left.add(shard)
                errors.append(error)
            with connect(node, topology.database, purpose=lock.purpose(command)) as last:
                for result in (*_ran(plan, left), *_results(failed_shards)):
                    events.record(last, command, result)
                events.record(last, command, f"unfinished: {len(left)}" if left else "done")
    except (psycopg.Error, ShardctlError) as error:
        errors.append(error)
    return Applied(tuple(sorted(left)), tuple(errors))


def _ran(plan: NodePlan, left: Collection[ShardId]) -> list[str]:
    """Give an event of each file that ran, and where; not of shards that are left."""
    shards: dict[str, list[ShardId]] = {}
    for work in plan.shards:
        for file in work.migrations if work.shard not in left else ():
            shards.setdefault(file.name, []).append(work.shard)
    return [f"ran: {file} in shards {ranges.of(here)}" for file, here in shards.items()]


def _results(failed: Mapping[ShardId, ShardctlError]) -> list[str]:
    """Give an event of each file and line that failed; no value of a row is in it."""
    shards: dict[str, list[ShardId]] = {}
    for shard, error in failed.items():
        where = error.where if isinstance(error, ShardFailed) and error.where else error.code
        shards.setdefault(where, []).append(shard)
    return [f"failed: {where} in shards {ranges.of(here)}" for where, here in shards.items()]


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
    lacking = catalog.read_ungranted(connection, roles) if plan.grant_to or plan.functions else ()
    if lacking:
        raise Incomplete(
            "grant_without_effect",
            f"node {plan.node}: {', '.join(lacking)} could not be granted all rights "
            "that applications need",
            hint=f"let the owner of database {topology.database.name} grant CONNECT on it; "
            "then run the command again",
        )
    connection.commit()


def _apply_shards(
    plan: NodePlan,
    free: list[Job],
    session: Callable[[], Connection],
    progress: Progress,
) -> list[Outcome[chunks.Chunk, Ran]]:
    """Work through the shards in chunks; the first runs singly and shows how many locks it takes.

    `session` opens another one in the place of one that broke.
    """
    if not plan.shards:
        return []
    phase = "creating" if any(work.create for work in plan.shards) else "migrating"
    progress.expect(plan.node, phase, len(plan.shards), "shards")
    width, stop = len(free), free[0].stop

    def work(chunk: chunks.Chunk) -> Ran:
        try:
            return _with_job(free, session, lambda job: chunks.run(job, chunk))
        finally:
            progress.advance(plan.node, len(chunk))

    # The one with the most to do shows most.
    largest = max(plan.shards, key=lambda w: (w.create, len(w.migrations)))
    rest = [work for work in plan.shards if work is not largest]
    first: chunks.Chunk = (largest,)
    outcomes = fanout.run([first], work, width=1, stop=stop)
    locks = outcomes[0].value[0] if outcomes and outcomes[0].value else None
    size = chunks.size(plan.lock_slots, width, locks, largest=_LARGEST_CHUNK)
    parts = [tuple(part) for part in patient.chunks(rest, size)]
    return outcomes + fanout.run(parts, work, width=width, stop=stop)


def _validate(
    ready: Sequence[ShardWork],
    free: list[Job],
    session: Callable[[], Connection],
    progress: Progress,
) -> list[tuple[ShardId, ShardctlError]]:
    """Validate the key's CHECKs of shards whose migrations have run; give what failed, by shard."""
    todo = [(work, table) for work in ready for table in chunks.to_validate(work)]
    if not todo:
        return []
    node = free[0].node
    progress.expect(node, "checking rows", len(todo), "tables")

    def work(one: tuple[ShardWork, str]) -> None:
        try:
            _with_job(free, session, lambda job: chunks.validate(job, *one))
        finally:
            progress.advance(node)

    ended = fanout.collect(todo, work, width=len(free), stop=free[0].stop)
    return [(of.shard, error) for (of, _), error in ended.problems]


def _with_job(
    free: list[Job], session: Callable[[], Connection], call: Callable[[Job], Value]
) -> Value:
    """Call with a job that is free, whose session is opened again where it broke."""
    job = free.pop()  # list.pop and insert are atomic
    try:
        if job.connection.closed:
            job = replace(job, connection=session())
        return call(job)
    finally:
        if not job.connection.closed:
            job.connection.rollback()
        free.insert(0, job)
