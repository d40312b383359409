"""Files without a transaction: statement by statement, shard by shard, and resumable.

A row in `shardctl.migration_begun` keeps how far a file is in a shard. It is written in the
transaction of the statement; where a statement cannot be in one, before it begins.
"""

from __future__ import annotations

import hashlib
import logging
import time
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus

from shardctl.errors import Interrupted
from shardctl.postgres import queries, split
from shardctl.provision import key_checks
from shardctl.provision import shard as ddl
from shardctl.provision.failures import StatementFailed, pause_or_raise
from shardctl.state import cluster

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardctl.postgres.connection import Connection
    from shardctl.postgres.split import Statement
    from shardctl.provision.job import Job
    from shardctl.provision.plan import ShardWork
    from shardctl.state.migrations import Migration

logger = logging.getLogger(__name__)
QUERIES = queries.load("shardctl.provision", "one_by_one.sql")

_LOOK_S = 0.2
_OUTSIDE = (
    psycopg.errors.ActiveSqlTransaction,
    psycopg.errors.InvalidTransactionTermination,
    psycopg.errors.ReadOnlySqlTransaction,
)
"""What a statement reports that cannot run in a transaction, or not with a row of ours."""

# A file may have changed the role, or made transactions read-only.
_OURS = sql.SQL("SET LOCAL SESSION AUTHORIZATION DEFAULT; SET LOCAL ROLE NONE; ")
# The statement's own commit makes the row before it durable, too.
_UNFLUSHED = sql.SQL("SET LOCAL synchronous_commit TO off; ")


def run(job: Job, chunk: Sequence[ShardWork], files: Sequence[Migration]) -> None:
    """Run files in shards; raises StatementFailed, and Interrupted between two shards."""
    connection = job.connection
    connection.autocommit = True
    own = ddl.clean_slate(None, job.retrying.lock_timeout_ms, session=True)
    try:
        for work in chunk:
            if job.stop.is_set():
                raise Interrupted("interrupted between two shards")
            for migration in files:
                if migration in work.migrations:
                    _Run(job, work, migration).statements()
                    connection.execute(own)
                    _require_valid_indexes(connection, work, migration)
                    key_checks.add_all(job, work, migration)
                    with connection.transaction():
                        cluster.record_migration(connection, [work.shard], migration)
                        connection.execute(QUERIES["forget"], _place(work, migration))
    finally:
        if not connection.closed:
            if connection.info.transaction_status is not TransactionStatus.IDLE:
                connection.rollback()
            connection.execute(own)
            connection.autocommit = False


def _place(work: ShardWork, migration: Migration) -> dict[str, object]:
    checksum = migration.checksum
    if migration.undoes:
        checksum = hashlib.sha256(migration.text.encode()).hexdigest()
    return {"shard": work.shard, "file": migration.name, "checksum": checksum}


@dataclass(frozen=True, slots=True)
class _Run:
    """One file in one shard."""

    job: Job
    work: ShardWork
    migration: Migration

    def statements(self) -> None:
        """Run the statements that are not done."""
        session = self.job.connection
        row = session.execute(QUERIES["begun"], _place(self.work, self.migration)).fetchone()
        first, running = row or (0, False)
        self._settings(self.job.retrying.lock_timeout_ms)
        for number, statement in enumerate(self.migration.statements()):
            # What a file sets for its session is lost with the session.
            if number < first and statement.first_words[:1] not in (("SET",), ("RESET",)):
                continue
            if "CONCURRENTLY" in statement.text.upper():
                again = row is not None and number == first
                self._concurrently(number, statement, again=again, running=running)
            else:
                self._alone(number, statement)

    def _settings(self, lock_timeout_ms: int) -> None:
        slate = ddl.clean_slate(self.work.schema, lock_timeout_ms, session=True)
        self.job.connection.execute(slate)

    def _lock_timeout(self, milliseconds: int) -> None:
        self.job.connection.execute(
            sql.SQL("SET lock_timeout TO {}").format(sql.Literal(milliseconds))
        )

    def _alone(self, number: int, statement: Statement) -> None:
        """Run a statement in a transaction with the row that says so; plainly where it cannot."""
        since = time.monotonic()
        outside = False
        for attempt in count(1):
            try:
                if outside:
                    self._outside(number, statement)
                else:
                    self._inside(number, statement)
            except _OUTSIDE as error:
                if outside:
                    raise self._failure(statement, error) from error
                outside = True
            except psycopg.Error as error:
                failure = self._failure(statement, error)
                pause_or_raise(self.job, failure, attempt, since=since)
            else:
                return

    def _inside(self, number: int, statement: Statement) -> None:
        session = self.job.connection
        with session.transaction():
            session.execute(statement.text.encode())
            session.execute(_OURS + self._mark(number + 1, running=False))

    def _outside(self, number: int, statement: Statement) -> None:
        self._begin(number, running=True)
        self.job.connection.execute(statement.text.encode())

    def _concurrently(
        self, number: int, statement: Statement, *, again: bool, running: bool
    ) -> None:
        """Run what waits for transactions as long as it takes, in no session's way.

        Cut off, it leaves an invalid index, and must not be done a second time.
        """
        limit_s = self.job.retrying.wait_s
        self._lock_timeout(0 if limit_s is None else round(limit_s * 1000))
        try:
            if not (again and self._is_done(statement, running=running)):
                self._begin(number, running=True)
                self.job.connection.execute(statement.text.encode())
        except psycopg.Error as error:
            if not self.job.connection.closed:
                self._begin(number, running=False)
            raise self._failure(statement, error) from error
        self._lock_timeout(self.job.retrying.lock_timeout_ms)

    def _is_done(self, statement: Statement, *, running: bool) -> bool:
        """Return whether a stopped statement has done its work; drops what it left half made."""
        named = index_of(statement)
        if named is None:
            return False
        verb, name = named
        given = {"schema": self.work.schema, "name": name}
        row = self._settled(given, statement)
        if verb == "DROP":
            return running and row is None
        if row is None:
            return False
        if row[0]:
            return running
        logger.info(
            "node %s: %s.%s is invalid: it is dropped and built again",
            self.job.node,
            self.work.schema,
            name,
        )
        self.job.connection.execute(
            sql.SQL("DROP INDEX CONCURRENTLY {}").format(sql.Identifier(self.work.schema, name))
        )
        return False

    def _settled(self, given: dict[str, str], statement: Statement) -> tuple[bool, int] | None:
        """Look at an index when no session builds it any more, as a killed command's might."""
        retrying = self.job.retrying
        limit_s = retrying.wait_s or retrying.attempts * retrying.lock_timeout_ms / 1000
        until = time.monotonic() + limit_s
        while True:
            row = self.job.connection.execute(QUERIES["index"], given).fetchone()
            if row is None or row[1] is None:
                return row
            if time.monotonic() >= until or self.job.stop.wait(_LOOK_S):
                raise self._failure(statement, None, builder=row[1], index=given["name"])

    def _begin(self, number: int, *, running: bool) -> None:
        begin = sql.SQL("BEGIN READ WRITE; ")
        mark = self._mark(number, running=running)
        self.job.connection.execute(begin + _OURS + _UNFLUSHED + mark + sql.SQL("; COMMIT"))

    def _mark(self, number: int, *, running: bool) -> sql.Composed:
        given = _place(self.work, self.migration) | {"statement": number, "running": running}
        return QUERIES["begin"].format(
            **{name: sql.Literal(value) for name, value in given.items()}
        )

    def _failure(
        self,
        statement: Statement,
        error: psycopg.Error | None,
        *,
        builder: int | None = None,
        index: str | None = None,
    ) -> StatementFailed:
        return StatementFailed(
            self.work,
            self.migration,
            error,
            line=statement.line,
            built_by=None if builder is None else (str(index), builder),
        )


def index_of(statement: Statement) -> tuple[str, str] | None:
    """Give the verb and the name of an index that a statement makes or drops; None: of no one.

    >>> [index_of(one) for one in split.split(
    ...     'CREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS "By" ON t (n);'
    ...     'DROP INDEX CONCURRENTLY by_n; CREATE INDEX CONCURRENTLY ON t (n)')]
    [('CREATE', 'By'), ('DROP', 'by_n'), None]
    """
    lexemes = list(split.lexemes(statement.text))
    words = [lexeme.upper() for lexeme in lexemes]
    if words[0] not in ("CREATE", "DROP") or "CONCURRENTLY" not in words[:4]:
        return None
    rest = words.index("CONCURRENTLY") + 1
    while words[rest : rest + 1] and words[rest] in ("IF", "NOT", "EXISTS"):
        rest += 1
    following = words[rest + 1 : rest + 2]
    if words[rest : rest + 1] in ([], ["ON"]) or following in ([","], ["."]):
        return None
    name = lexemes[rest]
    folded = name[1:-1].replace('""', '"') if name.startswith('"') else name.lower()
    return words[0], folded


def _require_valid_indexes(connection: Connection, work: ShardWork, migration: Migration) -> None:
    """Refuse to call a file done that left an invalid index, as IF NOT EXISTS would."""
    if migration.undoes:
        return
    row = connection.execute(QUERIES["invalid"], {"schema": work.schema}).fetchone()
    if row is not None:
        # When the index has been dropped, the file runs from its beginning.
        connection.execute(QUERIES["forget"], _place(work, migration))
        raise StatementFailed(work, migration, None, invalid_index=row[0])
