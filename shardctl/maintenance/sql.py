"""Run statements in many places at once: a transaction each, few sessions, rows as they come.

Rows are the server's own text. psycopg's cursors turn values into Python's, which loses what a type
cannot hold (infinity, the digits of a float), and take `%` for a placeholder or the whole answer
into memory. So this speaks to libpq.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psycopg
from psycopg import pq, sql

from shardctl.errors import Misused, Refused, ShardctlError, together
from shardctl.fanout import Silent
from shardctl.libpq import reason_of
from shardctl.maintenance import places as placing
from shardctl.postgres import cancelling, catalog, queries, split
from shardctl.postgres.connection import NodeLost, connect, is_lost
from shardctl.postgres.split import without_passwords
from shardctl.provision import refusals
from shardctl.state import events, lock
from shardctl.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from shardctl.fanout import Progress
    from shardctl.maintenance.places import Place, Places
    from shardctl.postgres.connection import Connection
    from shardctl.postgres.split import Statement
    from shardctl.topology.model import NodeName, ShardId, Topology

logger = logging.getLogger(__name__)

COMMAND = "sql"
_TOLD = 1000

Row = tuple[str | None, ...]

_ROWS = 1000
_CHARACTERS = 1 << 20
"""A batch ends with either."""
_COPYING = (pq.ExecStatus.COPY_IN, pq.ExecStatus.COPY_OUT, pq.ExecStatus.COPY_BOTH)
_FIELD = pq.DiagnosticField
QUERIES = queries.load("shardctl.maintenance", "queries.sql")

_SESSIONS = 64
"""In all; each node has one at the least."""
_WAITING = 16
"""Batches that wait to be taken; a place with more waits, so that memory stays bounded."""


def parse(text: str) -> tuple[Statement, ...]:
    """Split a text into its statements; raises statement_invalid.

    >>> [s.text for s in parse("SELECT 1; SELECT ';'")]
    ['SELECT 1', "SELECT ';'"]
    """
    if "\0" in text:
        raise Misused("statement_invalid", "the statement contains a zero byte", hint="remove it")
    found = tuple(split.split(text))
    if not found:
        raise Misused(
            "statement_invalid",
            "there is no statement",
            hint="specify one, such as 'SELECT count(*) FROM photos'",
        )
    for statement in found:
        _require_fit(statement)
    return found


def _require_fit(statement: Statement) -> None:
    where = f"line {statement.line}"
    if statement.text.startswith("\\"):
        raise Misused(
            "statement_invalid",
            f"{where}: {statement.text.split()[0]} is a psql command, not a statement",
            hint="run it in psql: `shardctl route` shows the connection string",
        )
    if (word := statement.ends) is not None:
        raise Misused(
            "statement_invalid",
            f"{where}: {word} is not supported: shardctl runs one transaction in each shard",
            hint="remove it",
        )
    if statement.streams:
        raise Misused(
            "statement_invalid",
            f"{where}: COPY with STDIN or STDOUT is not supported",
            hint="use SELECT with -o tsv, or INSERT",
        )


def for_log(text: str) -> str:
    """Give the text for logs and events: without passwords, and not too long.

    >>> for_log("ALTER ROLE ann PASSWORD 'it''s'; SELECT now()")
    "ALTER ROLE ann PASSWORD '***'; SELECT now()"
    """
    masked = without_passwords(text.strip())
    return masked if len(masked) <= _TOLD else f"{masked[:_TOLD]}..."


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be run where; `shards` None stands for every node instead."""

    topology: Topology
    statements: tuple[Statement, ...]
    places: Places
    shards: tuple[ShardId, ...] | None
    write: bool

    @property
    def for_log(self) -> str:
        """The statements for events and logs."""
        return for_log("; ".join(one.text for one in self.statements))


def planned(
    topology: Topology, text: str, *, shards: Sequence[ShardId] | None, write: bool
) -> Plan:
    """Decide what runs where; asks all nodes, changes nothing.

    Raises statement_invalid, what `places.look` and `of_shards` raise; to write also what
    `Fleet.require_settled` raises, and the errors of nodes that could not be asked.
    """
    found = parse(text)
    chosen = choose(topology, shards, write=write)
    return Plan(topology, found, chosen, None if shards is None else tuple(shards), write)


def choose(topology: Topology, shards: Sequence[ShardId] | None, *, write: bool) -> Places:
    """Find the shards' owners, or with None the nodes; raises as `plan` does."""
    fleet = placing.look(topology, purpose=lock.purpose(COMMAND))
    if write:
        fleet.require_settled()
    found = (
        placing.of_nodes(fleet, ours=write) if shards is None else placing.of_shards(fleet, shards)
    )
    if write and found.left_out:
        raise together(list(dict.fromkeys(error for _, error in found.left_out)))
    return found


@dataclass(frozen=True, slots=True)
class Column:
    """A column of an answer; `type` is None where it is none of PostgreSQL's own."""

    name: str
    type: str | None


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of an answer; `command` is the server's tag, None while more rows follow.

    A statement that gives no rows has no columns.
    """

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    command: str | None


class StatementRefused(Exception):
    """A server's error for a statement; the session is usable, its transaction has failed."""

    def __init__(self, sqlstate: str | None, message: str) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate
        self.message = message


def _answer_to(connection: Connection, statement: str) -> Iterator[Batch]:
    """Run one statement; the last batch has the command.

    Raises Refused, and psycopg.OperationalError when the session is lost. A caller who leaves
    early closes the session.
    """
    columns: tuple[Column, ...] = ()
    rows: list[Row] = []
    size = 0
    refused: Exception | None = None
    # One command, never more, and what comes, row by row.
    connection.pgconn.send_query_params(statement.encode(), None)
    connection.pgconn.set_single_row_mode()
    wire = Wire(connection.pgconn)
    wire.flush()
    for result in wire.results():
        status = result.status
        if status == pq.ExecStatus.FATAL_ERROR:
            # Only when all results have been taken does the session take another command.
            refused = refused or _refused(connection, result)
            continue
        if status in _COPYING:
            connection.close()
            raise StatementRefused(None, "COPY with STDIN or STDOUT is not supported")
        columns = columns or _columns(connection, result)
        for number in range(result.ntuples):
            row = tuple(_text(result.get_value(number, c)) for c in range(result.nfields))
            rows.append(row)
            size += sum(len(value) for value in row if value is not None)
        if status in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
            yield Batch(columns, tuple(rows), _text(result.command_status) or "")
            rows, size = [], 0
        elif len(rows) >= _ROWS or size >= _CHARACTERS:
            yield Batch(columns, tuple(rows), None)
            rows, size = [], 0
    if refused is not None:
        raise refused


def _columns(connection: Connection, result: pq.abc.PGresult) -> tuple[Column, ...]:
    types = connection.adapters.types
    found = []
    for number in range(result.nfields):
        oid = result.ftype(number)
        known = types.get(oid)
        name = None if known is None else known.name + ("[]" if oid == known.array_oid else "")
        found.append(Column(_text(result.fname(number)) or "", name))
    return tuple(found)


def _refused(connection: Connection, result: pq.abc.PGresult) -> Exception:
    state, message = (
        _text(result.error_field(field)) for field in (_FIELD.SQLSTATE, _FIELD.MESSAGE_PRIMARY)
    )
    reason = message or _text(result.error_message) or ""
    if state is None or connection.pgconn.status == pq.ConnStatus.BAD or state.startswith("57P"):
        return psycopg.OperationalError(reason.strip())
    return StatementRefused(state, reason)


def _text(value: bytes | None) -> str | None:
    # A database in SQL_ASCII may hold what is no UTF-8.
    return None if value is None else value.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Answer:
    """Rows or a command's tag of one statement (from 1) in one place."""

    place: Place
    statement: int
    batch: Batch


@dataclass(frozen=True, slots=True)
class Failure:
    """A place in which nothing was changed, or `unknown`: the answer to its COMMIT was lost.

    `error` is why nothing could be run there; else a statement (from 1) was refused.
    """

    place: Place
    message: str
    sqlstate: str | None = None
    statement: int | None = None
    error: ShardctlError | None = None
    unknown: bool = False


@dataclass(frozen=True, slots=True)
class Warned:
    """A notice of the server."""

    place: Place
    message: str


Event = Answer | Failure | Warned


@dataclass(slots=True)
class _At:
    """The progress of a transaction; `statement` counts from 1."""

    place: Place
    statement: int | None = None
    committing: bool = False
    kept: list[Answer] = field(default_factory=list)

    def failure(self, error: StatementRefused | psycopg.Error, *, lost: bool) -> Failure:
        if isinstance(error, StatementRefused):
            return Failure(self.place, error.message, error.sqlstate, self.statement)
        unknown = lost and self.committing
        reason = reason_of(error)
        return Failure(self.place, reason, error.sqlstate, self.statement, unknown=unknown)


@dataclass(frozen=True, slots=True)
class _Ended:
    node: NodeName
    error: Exception | None


@dataclass(slots=True)
class Run:
    """A plan in transit; `done` are the places whose transaction has ended well so far."""

    plan: Plan
    timeout_ms: int = 0
    jobs: int = 4
    progress: Progress = field(default_factory=Silent)
    done: list[Place] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _found: queue.Queue[Event | _Ended] = field(
        default_factory=lambda: queue.Queue(maxsize=_WAITING)
    )
    _sessions: dict[int, Connection] = field(default_factory=dict)

    def events(self) -> Generator[Event, None, None]:
        """Run everything, and give what comes of it as it comes.

        To write, under the nodes' locks and with events on the nodes. Raises NodeLocked,
        places_changed, public_open and what `plan` raises with nothing done. Stopping early
        (Ctrl-C, or closing this) cancels what runs; `done` and `failed` have the rest.
        """
        nodes = self.plan.places.nodes if self.plan.write else []
        with lock.held(self.plan.topology, nodes, command=COMMAND) as locks:
            if self.plan.write:
                self._require_unchanged()
            for node, session in locks.items():
                self._require_closed(session, node)
            for session in locks.values():
                events.record(session, COMMAND, f"started: {self.plan.for_log}")
            try:
                yield from self._carry_out()
            finally:
                for node, session in locks.items():
                    self._record(session, node)

    def _require_unchanged(self) -> None:
        """See that shards are where the plan has them; raises places_changed."""
        # The operator may have thought about it for long.
        now = choose(self.plan.topology, self.plan.shards, write=True)
        if now.chosen != self.plan.places.chosen:
            raise Refused(
                "places_changed",
                "the owners of shards changed after the plan was made; nothing was done",
                hint="run the command again",
            )

    def _require_closed(self, session: Connection, node: NodeName) -> None:
        """See that only trusted roles have functions on the search_path; raises public_open."""
        if intruders := catalog.read_intruders(session):
            raise refusals.public_open(node, self.plan.topology.database.user, intruders)

    def _record(self, session: Connection, node: NodeName) -> None:
        wanted = sum(place.node == node for place in self.plan.places.chosen)
        done = sum(place.node == node for place in self.done)
        outcome = "done" if done == wanted else "unfinished"
        what = "shard" if self.plan.shards is not None else "node"
        try:
            events.record(session, COMMAND, f"{outcome}: in {done} of {wanted} {what}s")
        except psycopg.Error as error:
            # The server is gone; what was done there is reported all the same.
            logger.warning("node %s: the event was not recorded: %s", node, reason_of(error))

    def _carry_out(self) -> Iterator[Event]:
        for place, error in self.plan.places.left_out:
            yield self._fail(Failure(place, error.message, error=error))
        left = {node: deque(found) for node, found in self.plan.places.by_node().items()}
        jobs = max(1, min(self.jobs, _SESSIONS // max(1, len(left))))
        unit = "" if self.plan.shards is None else "shards"
        for node, found in left.items():
            self.progress.expect(node, "running", len(found), unit)
        threads = [
            threading.Thread(target=self._work, args=(node, found), daemon=True)
            for node, found in left.items()
            for _ in range(min(jobs, len(found)))
        ]
        errors: dict[NodeName, Exception] = {}
        try:
            for thread in threads:
                thread.start()
            ended = 0
            while ended < len(threads):
                item = self._found.get()
                if not isinstance(item, _Ended):
                    yield item
                    continue
                ended += 1
                if item.error is not None:
                    errors[item.node] = item.error
        finally:
            self._end(threads)
        for node, cause in errors.items():
            if not isinstance(cause, ShardctlError):
                raise cause
            self.progress.end(node)
            for place in left[node]:
                yield self._fail(Failure(place, cause.message, error=cause))

    def _end(self, threads: Sequence[threading.Thread]) -> None:
        """Cancel what runs, until nothing does; a cancellation may come just too early."""
        self._stop.set()
        while any(thread.is_alive() for thread in threads):
            for session in list(self._sessions.values()):
                cancelling.cancel(session)
            with suppress(queue.Empty):
                while any(thread.is_alive() for thread in threads):
                    self._found.get(timeout=cancelling.PATIENCE_S)

    def _work(self, node: NodeName, left: deque[Place]) -> None:
        """Run the node's places, one after the other, as long as there are any."""
        error: Exception | None = None
        try:
            with self._session(node) as session:
                self._require_closed(session, node)
                while left and not self._stop.is_set():
                    with suppress(IndexError):  # another session has taken the last one
                        self._one(session, left.popleft())
        except psycopg.Error as caught:
            error = NodeLost(node, reason_of(caught))
        except Exception as caught:  # noqa: BLE001  # raised by the thread that waits for this one
            error = caught
        finally:
            self._sessions.pop(threading.get_ident(), None)
            self._found.put(_Ended(node, error))

    def _session(self, node: NodeName) -> Connection:
        topology = self.plan.topology
        session = connect(
            topology.nodes[node],
            topology.database,
            purpose=lock.purpose(COMMAND),
            autocommit=True,
        )
        if not self.plan.write:
            session.execute("SET default_transaction_read_only TO on")
        self._sessions[threading.get_ident()] = session
        return session

    def _one(self, session: Connection, place: Place) -> None:
        """Run the statements in one place; raises NodeLost, or psycopg.Error, when it is lost."""
        began, at = time.monotonic(), _At(place)

        def warn(notice: psycopg.errors.Diagnostic) -> None:
            self._found.put(Warned(place, f"{notice.severity}: {notice.message_primary}"))

        session.add_notice_handler(warn)
        failure: Failure | None = None
        try:
            self._transaction(session, at)
        except (StatementRefused, psycopg.Error) as error:
            failure = at.failure(error, lost=_lost(session, error))
            self._found.put(self._fail(failure))
        else:
            self.done.append(place)
            for answer in at.kept:
                self._found.put(answer)
        finally:
            session.remove_notice_handler(warn)
            self.progress.advance(place.node)
        outcome = failure.message if failure else "done"
        took_ms = (time.monotonic() - began) * 1000
        logger.debug("%s: %s: %s, %d ms", place, self.plan.for_log, outcome, took_ms)
        if session.closed:
            raise NodeLost(place.node, outcome)
        if failure:
            session.execute("ROLLBACK")

    def _transaction(self, session: Connection, at: _At) -> None:
        """Run the statements in a transaction of their own; raises Refused, psycopg.Error."""
        place, write = at.place, self.plan.write
        if not self._begin(session, place):
            raise StatementRefused(None, f"schema {place.schema} is not on node {place.node}")
        for at.statement, statement in enumerate(self.plan.statements, 1):
            for batch in _answer_to(session, statement.text):
                answer = Answer(place, at.statement, batch)
                if write:  # it is true only when it is committed
                    at.kept.append(answer)
                else:
                    self._found.put(answer)
        at.committing = write
        session.execute("COMMIT" if write else "ROLLBACK")

    def _begin(self, session: Connection, place: Place) -> bool:
        """Begin the place's transaction; False: its schema is missing, under this name."""
        path = [sql.Identifier(place.schema)] if place.schema else []
        composed = QUERIES["begin"].format(
            clean=QUERIES["clean"] if self.plan.write else sql.SQL(""),
            mode=sql.SQL("READ WRITE" if self.plan.write else "READ ONLY"),
            timeout_ms=sql.Literal(self.timeout_ms),
            path=sql.SQL(", ").join([*path, sql.SQL("public")]),
            schema=sql.Literal(place.schema),
        )
        cursor = session.execute(composed)
        while cursor.nextset():
            continue
        row = cursor.fetchone()
        return bool(row and row[0])

    def _fail(self, failure: Failure) -> Failure:
        self.failed.append(failure)
        return failure


def _lost(session: Connection, error: StatementRefused | psycopg.Error) -> bool:
    """Return whether the session is gone; then it is closed, and the server rolls back."""
    if isinstance(error, psycopg.Error) and is_lost(error):
        session.close()
    return session.closed
