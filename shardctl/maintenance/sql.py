"""Run statements in many places at once: a transaction each, and few sessions.

Rows are the server's own text. psycopg's cursors turn values into Python's, which loses what a type
cannot hold (infinity, the digits of a float), so this takes libpq's results.
"""

from __future__ import annotations

import logging
import queue
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psycopg
from psycopg import errors, pq, sql

from shardctl.errors import Misused, Refused, ShardctlError, together
from shardctl.fanout import Silent
from shardctl.libpq import reason_of
from shardctl.maintenance import places as placing
from shardctl.postgres import catalog, queries, split
from shardctl.postgres.connection import PATIENCE_S, NodeLost, Running, connect, is_lost
from shardctl.postgres.split import without_passwords
from shardctl.provision import refusals
from shardctl.state import events, lock

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterator, Sequence
    from concurrent.futures import Future

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
"""At most, of one `Answer`."""
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
        raise statement_invalid("the statement contains a zero byte")
    found = tuple(split.split(text))
    if not found:
        raise statement_invalid("there is no statement")
    for one in found:
        if one.ends is not None:
            raise statement_invalid(
                f"line {one.line}: {one.ends} is not supported: shardctl runs one transaction in "
                "each shard"
            )
        if one.streams:
            raise statement_invalid(f"line {one.line}: COPY with STDIN or STDOUT is not supported")
    return found


def statement_invalid(what: str) -> Misused:
    """Report a text that cannot be run in every shard."""
    return Misused(
        "statement_invalid",
        what,
        hint="specify statements for one transaction in each shard, such as 'SELECT count(*) FROM "
        "photos'; -o tsv prints rows as COPY does",
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
class Answer:
    """Rows of one statement (from 1) in one place; no columns where it gives none.

    `command` is the server's tag, None while more rows follow.
    """

    place: Place
    statement: int
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    command: str | None


def _answers(session: Connection, place: Place, number: int, statement: str) -> Iterator[Answer]:
    """Run one statement; raises psycopg.Error."""
    result = session.pgconn.exec_params(statement.encode(), None)  # one command, never more
    if result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
        raise errors.error_from_result(result)
    columns = tuple(_column(session, result, at) for at in range(result.nfields))
    for first in range(0, max(1, result.ntuples), _ROWS):
        end = min(first + _ROWS, result.ntuples)
        rows = tuple(
            tuple(_text(result.get_value(row, at)) for at in range(result.nfields))
            for row in range(first, end)
        )
        command = _text(result.command_status) or ""
        yield Answer(place, number, columns, rows, command if end == result.ntuples else None)


def _column(session: Connection, result: pq.abc.PGresult, number: int) -> Column:
    oid = result.ftype(number)
    known = session.adapters.types.get(oid)
    name = None if known is None else known.name + ("[]" if oid == known.array_oid else "")
    return Column(_text(result.fname(number)) or "", name)


def _text(value: bytes | None) -> str | None:
    # A database in SQL_ASCII may hold what is no UTF-8.
    return None if value is None else value.decode("utf-8", "replace")


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
class Run:
    """A plan in transit; `done` are the places whose transaction has ended well so far."""

    plan: Plan
    timeout_ms: int = 0
    jobs: int = 4
    progress: Progress = field(default_factory=Silent)
    done: list[Place] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)
    _running: Running = field(default_factory=lambda: Running(logger.debug))
    _found: queue.Queue[Event | None] = field(default_factory=lambda: queue.Queue(maxsize=_WAITING))
    """What comes of it, and None of each session that has ended."""

    def events(self) -> Generator[Event, None, None]:
        """Run everything, and give what comes of it as it comes.

        To write, under the nodes' locks and with events on the nodes. Raises NodeLocked,
        places_changed, public_open and what `plan` raises with nothing done. Stopping early
        (Ctrl-C, or closing this) cancels what runs; `done` and `failed` have the rest.
        """
        nodes = self.plan.places.nodes if self.plan.write else []
        with lock.held(self.plan.topology, nodes, command=COMMAND) as locks:
            if self.plan.write:  # the operator may have thought about it for long
                now = choose(self.plan.topology, self.plan.shards, write=True)
                if now.chosen != self.plan.places.chosen:
                    raise Refused(
                        "places_changed",
                        "the owners of shards changed after the plan was made; nothing was done",
                        hint="run the command again",
                    )
            for node, session in locks.items():
                self._require_closed(session, node)
            for session in locks.values():
                events.record(session, COMMAND, f"started: {self.plan.for_log}")
            try:
                yield from self._carry_out()
            finally:
                for node, session in locks.items():
                    self._record(session, node)

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
        sessions = [node for node, found in left.items() for _ in range(min(jobs, len(found)))]
        pool = ThreadPoolExecutor(max(1, len(sessions)))
        futures = [pool.submit(self._work, node, left[node]) for node in sessions]
        try:
            for _ in futures:
                while (event := self._found.get()) is not None:
                    yield event
        finally:
            self._end(futures)
            pool.shutdown()
        for node, future in zip(sessions, futures, strict=True):
            if (cause := future.exception()) is None:
                continue
            if not isinstance(cause, ShardctlError):
                raise cause
            self.progress.end(node)
            while left[node]:
                yield self._fail(Failure(left[node].popleft(), cause.message, error=cause))

    def _end(self, futures: Collection[Future[None]]) -> None:
        """Cancel what runs, until nothing does; a cancellation may come just too early."""
        while not all(future.done() for future in futures):
            self._running.cancel()
            with suppress(queue.Empty):
                while not all(future.done() for future in futures):
                    self._found.get(timeout=PATIENCE_S)

    def _work(self, node: NodeName, left: deque[Place]) -> None:
        """Run the node's places, one after the other, as long as there are any."""
        topology = self.plan.topology
        purpose = lock.purpose(COMMAND)
        try:
            with (
                connect(
                    topology.nodes[node], topology.database, purpose=purpose, autocommit=True
                ) as session,
                self._running.statement(session),
            ):
                if not self.plan.write:
                    session.execute("SET default_transaction_read_only TO on")
                self._require_closed(session, node)
                while left and not self._running.stopped.is_set():
                    with suppress(IndexError):  # another session has taken the last one
                        self._one(session, left.popleft())
        except psycopg.Error as error:
            raise NodeLost(node, reason_of(error)) from error
        finally:
            self._found.put(None)

    def _one(self, session: Connection, place: Place) -> None:
        """Run the statements in one place; raises psycopg.Error when the session is lost."""
        outcome = "done"
        number: int | None = None
        committing = False
        kept: list[Answer] = []

        def warn(notice: psycopg.errors.Diagnostic) -> None:
            self._found.put(Warned(place, f"{notice.severity}: {notice.message_primary}"))

        session.add_notice_handler(warn)
        try:
            self._begin(session, place)
            for number, statement in enumerate(self.plan.statements, 1):
                for answer in _answers(session, place, number, statement.text):
                    if self.plan.write:  # it is true only when it is committed
                        kept.append(answer)
                    else:
                        self._found.put(answer)
            committing = self.plan.write
            session.execute("COMMIT" if self.plan.write else "ROLLBACK")
            self.done.append(place)
            for answer in kept:
                self._found.put(answer)
        except psycopg.Error as error:
            outcome = reason_of(error)
            lost = session.closed or is_lost(error)
            unknown = lost and committing
            failure = Failure(place, outcome, error.sqlstate, number, unknown=unknown)
            self._found.put(self._fail(failure))
            if lost:
                raise
            session.rollback()
        finally:
            session.remove_notice_handler(warn)
            self.progress.advance(place.node)
            logger.debug("%s: %s: %s", place, self.plan.for_log, outcome)

    def _begin(self, session: Connection, place: Place) -> None:
        """Begin the place's transaction; raises psycopg.Error where its schema is missing, too."""
        path = [sql.Identifier(place.schema)] if place.schema else []
        composed = QUERIES["begin"].format(
            clean=QUERIES["clean"] if self.plan.write else sql.SQL(""),
            mode=sql.SQL("READ WRITE" if self.plan.write else "READ ONLY"),
            timeout_ms=sql.Literal(self.timeout_ms),
            path=sql.SQL(", ").join([*path, sql.SQL("public")]),
            schema=sql.Literal(place.schema),
        )
        ((there,),) = queries.rows_of_last(session, composed)
        if not there:
            raise psycopg.ProgrammingError(f"schema {place.schema} is not on node {place.node}")

    def _fail(self, failure: Failure) -> Failure:
        self.failed.append(failure)
        return failure
