"""What a chunk of shards fails at, said with node, shard, file and line."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import psycopg

from shardctl.errors import ShardctlError
from shardctl.postgres.connection import NodeLost, reason_of
from shardctl.provision import shard as ddl

if TYPE_CHECKING:
    from shardctl.provision.chunks import Job
    from shardctl.provision.plan import ShardWork
    from shardctl.state.migrations import Migration
    from shardctl.topology.model import NodeName

logger = logging.getLogger(__name__)


class ShardFailed(ShardctlError):
    """A shard could not be made; its whole chunk was rolled back.

    `cause` is what other shards that failed for the same reason share.
    """

    exit_code = 3

    def __init__(self, node: NodeName, work: ShardWork, reason: str) -> None:
        super().__init__(
            f"node {node}: shard {work.shard}: {reason}",
            hint="its chunk was rolled back; when the cause is mended, run the command again",
        )
        self.shard = work.shard
        self.cause = reason


class MigrationFailed(ShardctlError):
    """A statement of a migration failed in a shard; `line` is the file's, from 1."""

    exit_code = 3

    def __init__(
        self, node: NodeName, shard: int, migration: Migration, line: int | None, reason: str
    ) -> None:
        where = f"{migration.file}:{line}" if line else str(migration.file)
        what = (
            "its chunk was rolled back"
            if migration.transactional
            else "the statements before it stay done (no-transaction)"
        )
        super().__init__(
            f"{where}: shard {shard} on node {node}: {reason}",
            hint=f"{what}; mend the cause and run the command again",
        )
        self.shard = shard
        self.cause = f"{where}: {reason}"


class StatementFailed(Exception):
    """A database error, with where it happened; `line` is known for statements run singly."""

    def __init__(
        self,
        work: ShardWork,
        migration: Migration | None,
        error: psycopg.Error,
        line: int | None = None,
    ) -> None:
        super().__init__(str(error))
        self.work = work
        self.migration = migration
        self.error = error
        self.line = line


def named(job: Job, failure: StatementFailed) -> ShardctlError:
    """Turn a database error into one that names node, shard, file and line."""
    error, work, migration = failure.error, failure.work, failure.migration
    if job.connection.closed or isinstance(error, psycopg.errors.AdminShutdown):
        return NodeLost(job.node, reason_of(error))
    job.connection.rollback()
    reason = reason_of(error)
    if migration is None:
        return ShardFailed(job.node, work, reason)
    line = failure.line
    if isinstance(error, psycopg.errors.LockNotAvailable):
        reason += f" ({job.retrying.attempts} attempts of {job.retrying.lock_timeout_ms} ms)"
    elif line is None:
        line = _line(job, work, migration, error)
    return MigrationFailed(job.node, work.shard, migration, line, reason)


def _line(job: Job, work: ShardWork, migration: Migration, error: psycopg.Error) -> int | None:
    """Find the line that failed: from the error's position, or by running it again, singly.

    The second run makes and migrates this shard alone and is rolled back. None where it
    finds nothing wrong.
    """
    if error.diag.statement_position:
        before = migration.text[: int(error.diag.statement_position) - 1]
        return before.count("\n") + 1
    connection = job.connection
    try:
        connection.execute(ddl.lock_timeout(job.retrying.lock_timeout_ms))
        connection.execute(ddl.script(work).as_bytes(connection))
        for earlier in work.migrations:
            if earlier.number < migration.number and earlier.transactional:
                connection.execute(earlier.text.encode())
        for statement in migration.statements():
            try:
                connection.execute(statement.text.encode())
            except psycopg.Error:
                return statement.line
    except psycopg.Error as other:
        logger.info("node %s: the line was not found: %s", job.node, other)
    finally:
        if not connection.closed:
            connection.rollback()
    return None
