"""The CHECK constraint that keeps rows of other shards out of a table.

It is added NOT VALID with its migration, which reads no row, and validated afterwards in a
transaction of its own, which does not block writers.
"""

from __future__ import annotations

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
    from collections.abc import Iterable

    from shardctl.errors import ShardctlError
    from shardctl.provision.job import Job
    from shardctl.provision.plan import ShardWork
    from shardctl.state.keys import KeyLine

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


def tables(work: ShardWork) -> list[ShardTable]:
    """List what is to be validated when a shard's migrations have run."""
    chosen = dict.fromkeys(work.validate)
    chosen |= {line.table: None for one in work.migrations for line in keys.checks(one)}
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
                    f"{table}`, move them with the statements of its --sql; then run the "
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
