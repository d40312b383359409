"""The CHECK constraint that keeps rows of other shards out of a table.

It is added NOT VALID with its migration, which reads no row, and validated afterwards in a
transaction of its own, which does not block writers.
"""

from __future__ import annotations

import time
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

import psycopg
from psycopg import sql

from shardctl.libpq import reason_of
from shardctl.postgres.connection import NodeLost, is_lost
from shardctl.provision import failures
from shardctl.provision import shard as ddl
from shardctl.state import keys

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shardctl.errors import ShardctlError
    from shardctl.provision.job import Job
    from shardctl.provision.plan import ShardWork
    from shardctl.state.keys import KeyLine
    from shardctl.state.migrations import Migration

_NAME = sql.Identifier(keys.CHECK)


class ShardTable(NamedTuple):
    """A table of a shard, whose constraint is to be validated."""

    work: ShardWork
    table: str


def add(work: ShardWork, line: KeyLine) -> sql.Composed:
    """Compose what gives a table its constraint in one shard, also where it has one already."""
    return sql.SQL(
        "ALTER TABLE {table} DROP CONSTRAINT IF EXISTS {name}, ADD CONSTRAINT {name}"
        " CHECK (shardctl.shard_of({column}) OPERATOR(pg_catalog.=) {shard}) NOT VALID"
    ).format(
        table=sql.Identifier(work.schema, line.table),
        name=_NAME,
        column=sql.Identifier(line.column),
        shard=sql.Literal(int(work.shard)),
    )


def asked(migration: Migration) -> Sequence[KeyLine]:
    """Give the lines of a file that ask for a constraint, to be added after its statements."""
    return () if migration.undoes else keys.checks(migration)


def add_all(job: Job, work: ShardWork, migration: Migration) -> None:
    """Add the constraints that a file asks for, each by itself; validates none."""
    since = time.monotonic()
    for line in asked(migration):
        statement = add(work, line)
        for attempt in count(1):
            try:
                job.connection.execute(statement)
                break
            except psycopg.Error as error:
                failure = failures.StatementFailed(work, migration, error, line=line.line)
                failures.pause_or_raise(job, failure, attempt, since=since)


def tables(work: ShardWork) -> list[ShardTable]:
    """List what is to be validated when a shard's migrations have run."""
    chosen = dict.fromkeys(work.validate)
    ran = (migration for migration in work.migrations if not migration.undoes)
    for line in (line for migration in ran for line in keys.lines(migration)):
        # The constraint follows a table that is renamed.
        followed = line.gone is not None and chosen.pop(line.gone[0], line) is None
        if line.check or (followed and line.was):
            chosen[line.table] = None
    return [ShardTable(work, table) for table in chosen]


def validate(job: Job, chosen: Iterable[ShardTable]) -> list[ShardctlError]:
    """Validate constraints, each in a transaction of its own; give what failed.

    Writers go on in the meantime. A table that a later migration dropped is left out.
    """
    errors: list[ShardctlError] = []
    for work, table in chosen:
        try:
            _validate(job, work, table)
        except psycopg.errors.CheckViolation:
            job.connection.rollback()
            errors.append(
                failures.ShardFailed(
                    "rows_misplaced",
                    f"node {job.node}: shard {work.shard}: table {table} has rows with "
                    f"the keys of other shards, so constraint {keys.CHECK} was not "
                    "validated",
                    hint=f"list the rows with `shardctl rows misplaced {work.shard} --table "
                    f"{table}` and move them with `shardctl rows move`; then run the "
                    "command again (new rows are already checked)",
                    cause=f"table {table} has rows of other shards",
                )
            )
        except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedObject):
            job.connection.rollback()
        except failures.StatementFailed as failure:
            errors.append(failures.named(job, failure))
    return errors


def _validate(job: Job, work: ShardWork, table: str) -> None:
    """Validate one; raises NodeLost, StatementFailed and what `validate` takes care of."""
    connection = job.connection
    slate = ddl.clean_slate(None, job.retrying.lock_timeout_ms)
    statement = sql.SQL("ALTER TABLE {} VALIDATE CONSTRAINT {}").format(
        sql.Identifier(work.schema, table), _NAME
    )
    for attempt in count(1):
        try:
            connection.execute((slate + statement).as_bytes(connection))
            connection.commit()
        except (
            psycopg.errors.CheckViolation,
            psycopg.errors.UndefinedTable,
            psycopg.errors.UndefinedObject,
        ):
            raise
        except psycopg.Error as error:
            if is_lost(error):
                raise NodeLost(job.node, reason_of(error)) from error
            failures.pause_or_raise(job, failures.StatementFailed(work, None, error), attempt)
            connection.rollback()
        else:
            return
