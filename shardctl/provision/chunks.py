"""A chunk of shards: made, and migrated, in one transaction that the lock table bears."""

from __future__ import annotations

import logging
import time
from itertools import groupby
from typing import TYPE_CHECKING

import psycopg

from shardctl.libpq import reason_of
from shardctl.postgres.catalog import read_shadows
from shardctl.postgres.connection import NodeLost, is_lost
from shardctl.provision import key_checks, messages, one_by_one
from shardctl.provision import shard as ddl
from shardctl.provision.failures import StatementFailed, named, pause_or_raise
from shardctl.provision.messages import Piece
from shardctl.provision.plan import ShardWork
from shardctl.provision.refusals import table_shadowed
from shardctl.state import cluster
from shardctl.topology import ranges

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardctl.postgres.connection import Connection
    from shardctl.provision.job import Job
    from shardctl.state.migrations import Migration

logger = logging.getLogger(__name__)

Chunk = tuple[ShardWork, ...]


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
    Raises ShardFailed, table_shadowed, NodeLost, Interrupted (without a
    transaction only between shards); nothing of the open transaction then stays.
    """
    began = time.monotonic()
    try:
        locks = _run(job, chunk)
    except StatementFailed as failure:
        raise named(job, failure) from failure.error
    except psycopg.Error as error:
        if is_lost(error):
            raise NodeLost(job.node, reason_of(error)) from error
        raise named(job, StatementFailed(chunk[0], None, error)) from error
    files = sorted({m.name for work in chunk for m in work.migrations})
    logger.info(
        "node %s: shards %s are finished (migrations: %s), %d ms",
        job.node,
        ranges.of(work.shard for work in chunk),
        ", ".join(files) or "none",
        (time.monotonic() - began) * 1000,
    )
    return locks


def _run(job: Job, chunk: Chunk) -> int:
    files = sorted({m for work in chunk for m in work.migrations}, key=lambda m: m.number)
    groups = [(kind, list(group)) for kind, group in groupby(files, lambda m: m.transactional)]
    if not groups or not groups[0][0]:
        groups.insert(0, (True, []))  # what makes the shards needs a transaction
    locks = 0
    for number, (transactional, group) in enumerate(groups):
        if not transactional:
            one_by_one.run(job, chunk, group)
            continue
        locks = max(locks, _until_free(job, chunk, group, make=number == 0))
    return locks // len(chunk)


def _until_free(job: Job, chunk: Chunk, files: Sequence[Migration], *, make: bool) -> int:
    """Run files in one transaction, again where other sessions were in the way; count its locks.

    Several shards share a message only at first, and where another attempt may follow: shard by
    shard, it shows which one fails.
    """
    since, attempt = time.monotonic(), 1
    together = len(chunk) > 1 and job.retrying.attempts > 1 and job.retrying.wait_s is None
    while True:
        try:
            with job.running.statement(job.connection):
                return _in_transaction(job, chunk, files, make=make, together=together)
        except StatementFailed as failure:
            if _to_locate(job, failure):
                logger.info("node %s: repeated shard by shard: %s", job.node, failure.error)
            else:
                pause_or_raise(job, failure, attempt, since=since)
                attempt += 1
            job.connection.rollback()
            together = False


def _to_locate(job: Job, failure: StatementFailed) -> bool:
    """Return whether a failed message has to be repeated to see which of its shards failed."""
    stopped = job.stop.is_set() or job.connection.closed
    return failure.together and not failure.busy and not stopped


def _in_transaction(
    job: Job, chunk: Chunk, files: Sequence[Migration], *, make: bool, together: bool
) -> int:
    """Run all in one transaction; give the number of its entries in the lock table."""
    connection = job.connection
    slate = ddl.clean_slate(None, job.retrying.lock_timeout_ms).as_bytes(connection)
    pieces = _pieces(job, chunk, files, make=make)
    for message in messages.joined(pieces) if together else ((piece,) for piece in pieces):
        if len(message) > 1:  # all of it is parsed before its first RESET
            _execute(connection, slate, message)
        _execute(connection, messages.text(message), message)
    _execute(connection, slate, (Piece(chunk[0], slate),))
    try:
        return _finish(job, chunk, files, make=make)
    except psycopg.Error as error:
        raise StatementFailed(chunk[0], None, error) from error


def _pieces(job: Job, chunk: Chunk, files: Sequence[Migration], *, make: bool) -> Iterator[Piece]:
    """Give what the shards get, in order."""
    connection, timeout = job.connection, job.retrying.lock_timeout_ms
    checks = {migration: key_checks.asked(migration) for migration in files}
    for work in chunk:
        if make:
            script = ddl.clean_slate(None, timeout) + ddl.script(work)
            yield Piece(work, script.as_bytes(connection))
        slate = ddl.clean_slate(work.schema, timeout).as_bytes(connection)
        for migration in files:
            if migration in work.migrations:
                yield Piece(work, slate + migration.text.encode(), migration)
                for line in checks[migration]:
                    check = key_checks.add(work, line).as_bytes(connection)
                    yield Piece(work, check, migration, line.line)


def _finish(job: Job, chunk: Chunk, files: Sequence[Migration], *, make: bool) -> int:
    """Write down what was done, in the transaction that did it, and commit."""
    connection = job.connection
    made = {work.shard: job.node for work in chunk if work.create or work.adopt}
    if make and made:
        cluster.write_map(connection, job.topology, made)
        _open_restored(connection, chunk)
    for migration in files:
        cluster.record_migration(
            connection, [w.shard for w in chunk if migration in w.migrations], migration
        )
    schemas = [work.schema for work in chunk]
    shadows = read_shadows(connection, job.topology, schemas) if files else ()
    if shadows:
        connection.rollback()
        raise table_shadowed(job.node, *shadows[0])
    row = connection.execute(
        "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND NOT fastpath"
    ).fetchone()
    connection.commit()
    return int(row[0]) if row else 0


def _open_restored(connection: Connection, chunk: Chunk) -> None:
    """Record what restored shards have, and raise their ids above all from after the dump."""
    for work in chunk:
        for migration in work.restored:
            cluster.record_migration(connection, [work.shard], migration)
        if work.restored:
            connection.execute(cluster.QUERIES["open_block"], {"shard": work.shard})


def _execute(connection: Connection, text: bytes, message: Sequence[Piece]) -> None:
    try:
        connection.execute(text)
    except psycopg.Error as error:
        piece = message[0]
        raise StatementFailed(
            piece.work, piece.migration, error, line=piece.line, together=len(message) > 1
        ) from error
