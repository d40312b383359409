"""A chunk of shards: made, and migrated, in one transaction that the lock table bears."""

from __future__ import annotations

import logging
import random
import time
from dataclasses import dataclass
from itertools import count, groupby
from typing import TYPE_CHECKING

import psycopg

from shardctl.postgres.catalog import read_shadows
from shardctl.postgres.connection import NodeLost, reason_of
from shardctl.provision import shard as ddl
from shardctl.provision.failures import StatementFailed, named
from shardctl.provision.plan import ShardWork
from shardctl.provision.refusals import TableShadowed
from shardctl.state import cluster
from shardctl.state.cluster import QUERIES as STATE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardctl.postgres.connection import Connection
    from shardctl.state.migrations import Migration
    from shardctl.topology.model import NodeName, ShardId, Topology

logger = logging.getLogger(__name__)

Chunk = tuple[ShardWork, ...]


@dataclass(frozen=True, slots=True)
class Retrying:
    """How a chunk meets locks that others hold: wait `lock_timeout_ms`, `attempts` times in all.

    Between two attempts it waits longer each time, from 0.1 s to 2 s.
    """

    lock_timeout_ms: int = 2000
    attempts: int = 10


@dataclass(frozen=True, slots=True)
class Job:
    """Where and how chunks run: one session, used by one thread at a time."""

    connection: Connection
    topology: Topology
    node: NodeName
    retrying: Retrying


def size(lock_slots: int, sessions: int, per_shard: int | None, *, largest: int) -> int:
    """Give the shards a transaction may hold, when `sessions` of them run side by side.

    Three fifths of the lock table may be used; the rest is the application's. Unknown
    `per_shard` locks are taken for 40.
    """
    room = lock_slots * 3 // 5 // max(sessions, 1)
    return max(1, min(largest, room // max(per_shard or 40, 1)))


def run(job: Job, chunk: Chunk) -> int:
    """Make and migrate the shards of a chunk; give the locks that one of them took.

    Transactional migrations of all its shards share a transaction with what makes them;
    one without a transaction runs shard by shard, after those before it were committed.
    Raises MigrationFailed, ShardFailed, TableShadowed, NodeLost; nothing of the open
    transaction then stays.
    """
    try:
        return _run(job, chunk)
    except StatementFailed as failure:
        raise named(job, failure) from failure.error
    except psycopg.OperationalError as error:
        raise NodeLost(job.node, reason_of(error)) from error


def _run(job: Job, chunk: Chunk) -> int:
    files = sorted({m for work in chunk for m in work.migrations}, key=lambda m: m.number)
    groups = [(kind, list(group)) for kind, group in groupby(files, lambda m: m.transactional)]
    if not groups or not groups[0][0]:
        groups.insert(0, (True, []))  # what makes the shards needs a transaction
    locks = 0
    for number, (transactional, group) in enumerate(groups):
        if not transactional:
            _without_transaction(job, chunk, group)
            continue
        for attempt in count(1):
            try:
                taken = _in_transaction(job, chunk, group, make=number == 0)
            except StatementFailed as failure:
                _pause_or_raise(job, failure, attempt)
                job.connection.rollback()
            else:
                locks = max(locks, taken)
                break
    return locks // len(chunk)


def _in_transaction(job: Job, chunk: Chunk, files: Sequence[Migration], *, make: bool) -> int:
    """Run all in one transaction; give the number of its entries in the lock table."""
    connection = job.connection
    connection.execute(ddl.lock_timeout(job.retrying.lock_timeout_ms))
    for work in chunk:
        prologue = ddl.script(work) if make else ddl.search_path(work.schema)
        _execute(connection, prologue.as_bytes(connection), work, None)
        for migration in files:
            if migration in work.migrations:
                _execute(connection, migration.text.encode(), work, migration)
    connection.execute("SET LOCAL search_path TO pg_catalog")
    made = {work.shard: job.node for work in chunk if work.create or work.adopt}
    if make and made:
        cluster.write_map(connection, job.topology, made)
    for migration in files:
        _record(connection, [w.shard for w in chunk if migration in w.migrations], migration)
    shadows = read_shadows(connection, job.topology) if files else ()
    if shadows:
        connection.rollback()
        raise TableShadowed(job.node, *shadows[0])
    row = connection.execute(
        "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND NOT fastpath"
    ).fetchone()
    connection.commit()
    return int(row[0]) if row else 0


def _without_transaction(job: Job, chunk: Chunk, files: Sequence[Migration]) -> None:
    """Run files statement by statement, each in a transaction of its own, shard by shard."""
    connection = job.connection
    connection.autocommit = True
    try:
        connection.execute(ddl.lock_timeout(job.retrying.lock_timeout_ms, session=True))
        for work in chunk:
            connection.execute(ddl.search_path(work.schema, session=True))
            for migration in files:
                if migration in work.migrations:
                    _one_by_one(job, work, migration)
                    _record(connection, [work.shard], migration)
    finally:
        if not connection.closed:
            connection.execute("RESET search_path")
            connection.autocommit = False


def _one_by_one(job: Job, work: ShardWork, migration: Migration) -> None:
    for statement in migration.statements():
        for attempt in count(1):
            try:
                job.connection.execute(statement.text.encode())
                break
            except psycopg.Error as error:
                failure = StatementFailed(work, migration, error, statement.line)
                _pause_or_raise(job, failure, attempt)


def _record(connection: Connection, shards: list[ShardId], migration: Migration) -> None:
    connection.execute(
        STATE["record_migration"],
        {"shards": shards, "file": migration.name, "checksum": migration.checksum},
    )


def _execute(
    connection: Connection, text: bytes, work: ShardWork, migration: Migration | None
) -> None:
    try:
        connection.execute(text)
    except psycopg.Error as error:
        raise StatementFailed(work, migration, error) from error


def _pause_or_raise(job: Job, failure: StatementFailed, attempt: int) -> None:
    """Wait before another attempt at a lock that others hold; raise any other failure."""
    busy = psycopg.errors.LockNotAvailable | psycopg.errors.DeadlockDetected
    if not isinstance(failure.error, busy) or attempt >= job.retrying.attempts:
        raise failure
    logger.info("node %s: attempt %d: %s", job.node, attempt, failure.error)
    time.sleep(min(0.05 * 2**attempt, 2.0) * random.uniform(0.5, 1.0))  # noqa: S311  # no secret
