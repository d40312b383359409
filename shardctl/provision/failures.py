"""How chunks of shards run, and the failure of a batch, with node, shard, file and line."""

from __future__ import annotations

import logging
import random
import threading
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, TypeVar

import psycopg

from shardctl.errors import Interrupted, Refused, ShardctlError
from shardctl.libpq import reason_of
from shardctl.postgres.connection import NodeLost, Running, is_lost
from shardctl.provision import shard as ddl

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shardctl.postgres.connection import Connection
    from shardctl.provision.plan import ShardWork
    from shardctl.state.migrations import Migration
    from shardctl.topology.model import NodeName, Topology


@dataclass(frozen=True, slots=True)
class Retrying:
    """How a batch meets locks of other sessions: wait `lock_timeout_ms`, `attempts` times in all.

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
    stop: threading.Event = field(default_factory=threading.Event)
    running: Running = field(default_factory=Running)
    """What Ctrl-C cancels: only what is rolled back then."""
    holders: Mapping[int, str] = field(default_factory=dict)
    """By the process id of a session: the last holder of the lock that it waited for."""


logger = logging.getLogger(__name__)
Value = TypeVar("Value")


_IN_THE_WAY = (
    psycopg.errors.LockNotAvailable,
    psycopg.errors.DeadlockDetected,
    # What GRANT and CREATE OR REPLACE report when two sessions do it to one object.
    psycopg.errors.InternalError_,
)
"""Errors that may be gone the next time."""


class ShardFailed(Refused):
    """What failed in a shard; shards that failed for the same reason share the `cause`.

    `where` is the migration's file and line, if there is one.
    """

    exit_code = 3

    def __init__(self, code: str, message: str, *, hint: str, cause: str, where: str = "") -> None:
        super().__init__(code, message, hint=hint)
        self.cause = cause
        self.where = where


def migration_failed(
    node: NodeName,
    shard: int,
    migration: Migration,
    line: int | None,
    reason: str,
    *,
    detail: str = "",
) -> ShardFailed:
    """Report a statement of a migration that failed in a shard; `line` is the file's, from 1."""
    at = f":{line}" if line else ""
    where, told = f"{migration.file}{at}", reason + detail
    what = (
        "the shard's changes were rolled back; fix the cause"
        if migration.transactional
        else (
            "a no-transaction migration is not rolled back: undo its statements by hand or "
            "fix the file"
        )
    )
    return ShardFailed(
        "migration_failed",
        f"{where}: shard {shard} on node {node}: {told}",
        hint=f"{what}, then run the command again",
        cause=f"{where}: {reason}",
        where=f"{migration.name}{at}",
    )


class StatementFailed(Exception):
    """A database error, with where it happened; `line` is known for statements that ran singly."""

    def __init__(
        self,
        work: ShardWork,
        migration: Migration | None,
        error: psycopg.Error,
        *,
        line: int | None = None,
    ) -> None:
        super().__init__(str(error))
        self.work = work
        self.migration = migration
        self.error = error
        self.line = line

    @property
    def busy(self) -> bool:
        """Whether other sessions were in the way, and may not be next time."""
        return isinstance(self.error, _IN_THE_WAY)


def named(job: Job, failure: StatementFailed) -> ShardctlError:
    """Turn a database error into one that names node, shard, file and line; rolls back."""
    error, work, migration = failure.error, failure.work, failure.migration
    if job.connection.closed or is_lost(error):
        return NodeLost(job.node, reason_of(error))
    job.connection.rollback()
    if isinstance(error, psycopg.errors.QueryCanceled) and job.stop.is_set():
        return Interrupted("interrupted: the batch was rolled back")
    reason = reason_of(error)
    if isinstance(error, psycopg.errors.LockNotAvailable):
        reason += f" ({job.retrying.attempts} attempts of {job.retrying.lock_timeout_ms} ms)"
        if holder := job.holders.get(job.connection.info.backend_pid):
            reason += f"; {holder} held the lock"
    detail = "; ".join((error.diag.message_detail or "").splitlines())
    detail = f" (DETAIL: {detail})" if detail else ""
    told = reason + detail
    if migration is None:
        return ShardFailed(
            "shard_failed",
            f"node {job.node}: shard {work.shard}: {told}",
            hint="the shard's changes were rolled back; fix the cause, then run the command again",
            cause=reason,
        )
    line = failure.line
    if line is None and not failure.busy:
        line = _line(job, failure, migration, error)
    return migration_failed(job.node, work.shard, migration, line, reason, detail=detail)


def _line(
    job: Job, failure: StatementFailed, migration: Migration, error: psycopg.Error
) -> int | None:
    """Find the line that failed: from the error's position, or by running it again, singly.

    The second run makes and migrates only this shard and is rolled back. None where it
    finds nothing wrong.
    """
    connection, work = job.connection, failure.work
    slate = ddl.clean_slate(work.schema, job.retrying.lock_timeout_ms).as_bytes(connection)
    position = int(error.diag.statement_position or 0) - len(slate.decode())
    if position > 0:
        return migration.text[: position - 1].count("\n") + 1
    try:
        connection.execute(ddl.script(work).as_bytes(connection))
        for earlier in work.migrations:
            if earlier.number < migration.number and earlier.transactional:
                connection.execute(slate + earlier.text.encode())
        connection.execute(slate)
        for statement in migration.statements():
            try:
                connection.execute(statement.text.encode())
            except psycopg.Error:
                return statement.line
    except psycopg.Error as other:
        logger.info("node %s: cannot find the line of the failed statement: %s", job.node, other)
    finally:
        if not connection.closed:
            connection.rollback()
    return None


def again(job: Job, call: Callable[[], Value], attempts: int | None = None) -> Value:
    """Call, again and again while other sessions are in the way; raises StatementFailed.

    There are as many `attempts`, None is those of the job.
    """
    for attempt in count(1):
        try:
            return call()
        except StatementFailed as failure:
            last = attempt >= (attempts or job.retrying.attempts)
            if not failure.busy or last or job.connection.closed:
                raise
            logger.info("node %s: attempt %d: %s", job.node, attempt, failure.error)
            seconds = min(0.05 * 2**attempt, 2.0) * random.uniform(0.5, 1.0)  # noqa: S311  # no secret
            if job.stop.wait(seconds):
                raise
        if not job.connection.autocommit:
            job.connection.rollback()
    raise AssertionError  # pragma: no cover  # the last attempt raises
