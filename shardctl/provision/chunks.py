"""A chunk of shards: made, and migrated, in one transaction that the lock table bears.

What fails in it is told with node, shard, file and line.
"""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass
from functools import partial
from itertools import count, groupby
from typing import TYPE_CHECKING, TypeVar

import psycopg
from psycopg import generators, sql
from psycopg.pq import ExecStatus

from shardctl.errors import Interrupted, Refused, ShardctlError
from shardctl.ids import generator
from shardctl.libpq import reason_of
from shardctl.postgres import queries
from shardctl.postgres.catalog import read_shadows
from shardctl.postgres.connection import NodeLost, is_lost
from shardctl.postgres.split import split
from shardctl.provision import shard as ddl
from shardctl.provision.plan import ShardWork
from shardctl.provision.refusals import table_shadowed
from shardctl.state import cluster, keys
from shardctl.state.cluster import QUERIES as STATE
from shardctl.topology import ranges

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from shardctl.postgres.connection import Connection, Running
    from shardctl.provision.plan import Options
    from shardctl.state.migrations import Migration
    from shardctl.topology.model import NodeName, ShardId, Topology


@dataclass(slots=True)
class Job:
    """Where and how chunks run: one session in autocommit, used by one thread at a time."""

    connection: Connection
    topology: Topology
    node: NodeName
    options: Options
    stop: threading.Event
    running: Running
    """What Ctrl-C cancels: only what is rolled back then."""
    locks: int = 0
    """How many locks a shard took at the most."""


logger = logging.getLogger(__name__)
Value = TypeVar("Value")
_LARGEST = 50
"""Shards a transaction: more gain nothing (measured), and a failure repeats the others."""

Chunk = tuple[ShardWork, ...]

_CHECK = sql.Identifier(keys.CHECK)
"""The constraint that keeps rows of other shards out of a table.

It is added NOT VALID with its migration, which reads no row, and validated afterwards in a
transaction of its own, which does not block writers.
"""


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


@dataclass(eq=False)
class StatementFailed(Exception):
    """A database error, with where it happened; `line` is the migration's."""

    work: ShardWork
    migration: Migration | None
    error: psycopg.Error
    line: int | None = None


def named(job: Job, failure: StatementFailed) -> ShardFailed:
    """Turn a database error into one that names node, shard, file and line.

    Raises NodeLost, Interrupted.
    """
    error, work, migration = failure.error, failure.work, failure.migration
    if job.connection.closed or is_lost(error):
        raise NodeLost(job.node, reason_of(error)) from error
    if isinstance(error, psycopg.errors.QueryCanceled) and job.stop.is_set():
        raise Interrupted("interrupted: the batch was rolled back") from error
    reason = reason_of(error)
    if isinstance(error, psycopg.errors.LockNotAvailable):
        reason += f" ({job.options.attempts} attempts of {job.options.lock_timeout_ms} ms)"
    detail = "; ".join((error.diag.message_detail or "").splitlines())
    detail = f" (DETAIL: {detail})" if detail else ""
    if migration is None:
        return ShardFailed(
            "shard_failed",
            f"node {job.node}: shard {work.shard}: {reason}{detail}",
            hint="the shard's changes were rolled back; fix the cause, then run the command again",
            cause=reason,
        )
    at = f":{failure.line}" if failure.line else ""
    where, what = f"{migration.file}{at}", "the shard's changes were rolled back; fix the cause"
    if not migration.transactional:
        what = "a no-transaction migration is not rolled back: undo its statements by hand or "
        what += "fix the file"
    return ShardFailed(
        "migration_failed",
        f"{where}: shard {work.shard} on node {job.node}: {reason}{detail}",
        hint=f"{what}, then run the command again",
        cause=f"{where}: {reason}",
        where=f"{migration.name}{at}",
    )


def again(job: Job, call: Callable[[], Value], attempts: int | None = None) -> Value:
    """Call, again and again while other sessions are in the way; raises StatementFailed.

    There are as many `attempts`, None is those of the job.
    """
    for attempt in count(1):
        try:
            return call()
        except StatementFailed as failure:
            last = attempt >= (attempts or job.options.attempts)
            busy = isinstance(failure.error, _IN_THE_WAY)
            if not busy or last or job.connection.closed:
                raise
            logger.info("node %s: attempt %d: %s", job.node, attempt, failure.error)
            seconds = min(0.05 * 2**attempt, 2.0) * random.uniform(0.5, 1.0)  # noqa: S311  # no secret
            if job.stop.wait(seconds):
                raise
    raise AssertionError  # pragma: no cover  # the last attempt raises


def size(lockable: int, sessions: int, per_shard: int) -> int:
    """Give the shards a transaction may hold, when `sessions` of them run side by side.

    Together they take `lockable` locks at the most. Unknown `per_shard` locks are taken for 40.
    """
    return max(1, min(_LARGEST, lockable // sessions // (per_shard or 40)))


def run(job: Job, chunk: Chunk) -> dict[ShardId, ShardctlError]:
    """Make and migrate the shards of a chunk; those that fail are rolled back, the others done.

    Gives the shards that failed.

    Transactional migrations of all its shards share a transaction with what makes them;
    one without a transaction runs shard by shard, after those before it were committed. Then the
    key's CHECKs are validated, table by table.
    Raises NodeLost, Interrupted (without a transaction only between shards); nothing of the open
    transaction then stays.
    """
    failed: dict[ShardId, ShardctlError] = {}
    files = sorted({m for work in chunk for m in work.migrations}, key=lambda m: m.number)
    groups = [(kind, list(group)) for kind, group in groupby(files, lambda m: m.transactional)]
    if not groups or not groups[0][0]:
        groups.insert(0, (True, []))  # what makes the shards needs a transaction
    for number, (transactional, group) in enumerate(groups):
        left = tuple(work for work in chunk if work.shard not in failed)
        parts = [left] if transactional else [(work,) for work in left]
        while parts:
            part = parts.pop()
            try:
                if transactional:
                    again(job, partial(_in_transaction, job, part, group, make=number == 0))
                else:
                    _without_transaction(job, part[0], group)
            except StatementFailed as failure:
                parts += _rest(job, part, failure, failed)
            except Refused as error:
                failed |= dict.fromkeys((work.shard for work in part), error)
            if parts and job.stop.is_set():
                raise Interrupted("interrupted between two shards")
    validate(job, [work for work in chunk if work.shard not in failed], failed)
    if done := [work.shard for work in chunk if work.shard not in failed]:
        names = ", ".join(file.name for file in files) or "none"
        shards = ranges.of(done)
        logger.info("node %s: shards %s are finished (migrations: %s)", job.node, shards, names)
    return failed


def _rest(
    job: Job, part: Chunk, failure: StatementFailed, failed: dict[ShardId, ShardctlError]
) -> list[Chunk]:
    """Put the shard of a failure into `failed`, and give the others, which are to be run again.

    Where it is not certain which shard it was, that is each by itself. Raises NodeLost,
    Interrupted.
    """
    error = named(job, failure)
    if failure.migration is None and len(part) > 1:
        return [(work,) for work in part]
    failed[failure.work.shard] = error
    rest = tuple(work for work in part if work is not failure.work)
    return [rest] if rest else []


def _in_transaction(job: Job, chunk: Chunk, files: Sequence[Migration], *, make: bool) -> None:
    """Run all in one transaction."""
    connection, timeout = job.connection, job.options.lock_timeout_ms
    try:
        with job.running.statement(connection), connection.transaction():
            for work in chunk:
                script = ddl.clean_slate(None, timeout)
                script += ddl.script(work) if make else sql.SQL("")
                _execute(connection, script.as_bytes(connection), work)
                slate = ddl.clean_slate(work.schema, timeout).as_string(connection)
                for migration in files:
                    if migration in work.migrations:
                        _migrate(connection, slate, work, migration)
                        _add_checks(job, work, migration)
            connection.execute(ddl.clean_slate(None, timeout))
            _record_all(job, chunk, files, make=make)
    except psycopg.Error as error:
        raise StatementFailed(chunk[0], None, error) from error


def _record_all(job: Job, chunk: Chunk, files: Sequence[Migration], *, make: bool) -> None:
    """Write down what was done, in the transaction that did it; count its locks."""
    connection = job.connection
    made = {work.shard: job.node for work in chunk if work.create or work.adopt}
    if make and made:
        cluster.write_map(connection, job.topology, made)
    for migration in files:
        _record(connection, [w.shard for w in chunk if migration in w.migrations], migration)
    schemas = [work.schema for work in chunk]
    if shadows := read_shadows(connection, job.topology, schemas) if files else ():
        raise table_shadowed(job.node, *shadows[0])
    (taken,) = queries.one(
        connection, "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND NOT fastpath"
    )
    job.locks = max(job.locks, taken // len(chunk))


def _without_transaction(job: Job, work: ShardWork, files: Sequence[Migration]) -> None:
    """Run files in a shard statement by statement, each in a transaction of its own."""
    connection = job.connection
    own = ddl.clean_slate(None, job.options.lock_timeout_ms, session=True)
    try:
        for migration in files:
            if migration in work.migrations:
                _one_by_one(job, work, migration)
                connection.execute(own)
                _require_valid_indexes(job, work, migration)
                _add_checks(job, work, migration)
                _record(connection, [work.shard], migration)
    except psycopg.Error as error:
        raise StatementFailed(work, None, error) from error
    finally:
        if not connection.closed:
            connection.execute(own)


def _one_by_one(job: Job, work: ShardWork, migration: Migration) -> None:
    """Run a file's statements singly.

    What is done CONCURRENTLY waits for transactions as long as it takes, in no session's way; cut
    off, it would leave an invalid index, and must not be done a second time.
    """
    patient = ddl.clean_slate(work.schema, 0, session=True)
    usual = ddl.clean_slate(work.schema, job.options.lock_timeout_ms, session=True)
    job.connection.execute(usual)
    for statement in migration.statements():
        concurrently = "CONCURRENTLY" in statement.text.upper()
        if concurrently:
            job.connection.execute(patient)
        text = statement.text.encode()
        run_it = partial(_execute, job.connection, text, work, migration, statement.line)
        again(job, run_it, 1 if concurrently else None)
        if concurrently:
            job.connection.execute(usual)


def _add_checks(job: Job, work: ShardWork, migration: Migration) -> None:
    """Add the constraints that a file asks for, after its statements; validates none."""
    for line in keys.checks(migration):
        # Also where the table has one already.
        statement = sql.SQL(
            "ALTER TABLE {table} DROP CONSTRAINT IF EXISTS {name}, ADD CONSTRAINT {name}"
            " CHECK (shardctl.shard_of({column}) OPERATOR(pg_catalog.=) {shard}) NOT VALID"
        ).format(
            table=sql.Identifier(work.schema, line.table),
            name=_CHECK,
            column=sql.Identifier(line.column),
            shard=sql.Literal(int(work.shard)),
        )
        text = statement.as_bytes(job.connection)
        add = partial(_execute, job.connection, text, work, migration, line.line)
        # Within a transaction, all of it is repeated, if anything.
        again(job, add, 1 if migration.transactional else None)


def _require_valid_indexes(job: Job, work: ShardWork, migration: Migration) -> None:
    """Refuse to call a file done that left an invalid index, as IF NOT EXISTS would."""
    row = job.connection.execute(
        "SELECT i.indexrelid::pg_catalog.regclass::text FROM pg_catalog.pg_index AS i"
        " JOIN pg_catalog.pg_class AS c ON c.oid = i.indexrelid"
        " WHERE NOT i.indisvalid AND c.relnamespace = %s::pg_catalog.regnamespace LIMIT 1",
        (generator.quote_identifier(work.schema),),
    ).fetchone()
    if row is not None:
        reason = f"index {row[0]} is invalid: drop it (DROP INDEX CONCURRENTLY)"
        error = psycopg.errors.ObjectNotInPrerequisiteState(reason)
        raise StatementFailed(work, migration, error)


def _record(connection: Connection, shards: list[ShardId], migration: Migration) -> None:
    connection.execute(
        STATE["record_migration"],
        {"shards": shards, "file": migration.name, "checksum": migration.checksum},
    )


def _execute(
    connection: Connection,
    text: bytes,
    work: ShardWork,
    migration: Migration | None = None,
    line: int | None = None,
) -> None:
    try:
        connection.execute(text)
    except psycopg.Error as error:
        raise StatementFailed(work, migration, error, line=line) from error


def _migrate(connection: Connection, slate: str, work: ShardWork, migration: Migration) -> None:
    """Run a file as one message in the open transaction; the error of a statement has its line.

    It is known by the error's position, or by how many statements went well before it.
    """
    text = slate + migration.text
    try:
        connection.pgconn.send_query(text.encode())
        *done, last = connection.wait(generators.execute(connection.pgconn))
    except psycopg.Error as error:
        raise StatementFailed(work, migration, error) from error
    if last.status == ExecStatus.FATAL_ERROR:
        failed = psycopg.errors.error_from_result(last)
        if position := int(failed.diag.statement_position or 0):
            line = text.count("\n", 0, position - 1) + 1
        else:
            line = split(text)[: len(done) + 1][-1].line
        raise StatementFailed(work, migration, failed, line=line - slate.count("\n"))


def to_validate(work: ShardWork) -> list[str]:
    """List the tables whose constraint is to be validated when a shard's migrations have run."""
    added = (line.table for one in work.migrations for line in keys.checks(one))
    return list(dict.fromkeys([*work.validate, *added]))


def validate(job: Job, ready: Sequence[ShardWork], failed: dict[ShardId, ShardctlError]) -> None:
    """Validate the constraints of shards, each in a transaction of its own, while writers go on.

    Puts rows_misplaced, or what `named` gives, into `failed`; a table that a later migration
    dropped is left out. Raises what `named` raises.
    """
    for work, table in [(one, table) for one in ready for table in to_validate(one)]:
        statement = ddl.clean_slate(None, job.options.lock_timeout_ms) + sql.SQL(
            "ALTER TABLE {} VALIDATE CONSTRAINT {}"
        ).format(sql.Identifier(work.schema, table), _CHECK)
        text = statement.as_bytes(job.connection)
        try:
            with job.running.statement(job.connection):
                again(job, partial(_execute, job.connection, text, work))
        except StatementFailed as failure:
            dropped = (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedObject)
            if isinstance(failure.error, psycopg.errors.CheckViolation):
                error = ShardFailed(
                    "rows_misplaced",
                    f"node {job.node}: shard {work.shard}: table {table} has rows with the keys "
                    f"of other shards, so constraint {keys.CHECK} was not validated",
                    hint=f"list the rows with `shardctl rows misplaced {work.shard} --table "
                    f"{table}`, move them with the statements of its --sql; then run the command "
                    "again",
                    cause=f"table {table} has rows of other shards",
                )
                failed.setdefault(work.shard, error)
            elif not isinstance(failure.error, dropped):
                failed.setdefault(work.shard, named(job, failure))
