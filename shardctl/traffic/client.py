"""One client of the load: a thread that runs one operation after the other, and records each."""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections import OrderedDict
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psycopg

from shardctl.errors import ShardctlError
from shardctl.traffic import operations
from shardctl.traffic.operations import FENCED_S, MOVED, Lost, Refused, RoutedSession, Session
from shardctl.traffic.record import OK, Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from shardctl.router import ShardedDatabase
    from shardctl.topology.model import NodeName, ShardId
    from shardctl.traffic.client_routes import ClientRoute, Statements
    from shardctl.traffic.operations import Acknowledge, Operation

logger = logging.getLogger(__name__)

FENCE = frozenset({"42P01", "3F000"})
"""SQLSTATEs of the fence: a table or schema with this name is missing."""

CONNECTIONS = 64
"""The most open connections of a client: 8 clients stay below the sandbox's max_client_conn."""
_AFTER_ERROR_S = 0.02
_STAY = 8
"""Operations before a client replaces one of the shards that it has connections for."""


@dataclass(slots=True)
class Course:
    """What the workers of a load have in common; times are those of `perf_counter`."""

    route: ClientRoute
    router: ShardedDatabase | None
    """What clients use in place of connections of their own, if they do."""
    map: ShardedDatabase | None
    """What tells clients the nodes, where they need them."""
    statements: Callable[[ShardId], Statements]
    """Those of a shard, composed once."""
    interval: float
    """Seconds from the start of a client's operation to that of the next, 0 for no limit."""
    began: float = field(default_factory=time.perf_counter)
    ends: float = math.inf
    go: threading.Event = field(default_factory=threading.Event)
    """Whether it has begun."""
    stop: threading.Event = field(default_factory=threading.Event)


class Client:
    """A client with its own shards; `record` has what it did.

    It waits for each answer without a limit, so that a stall is one long operation of every
    affected client, not many. No two clients share a shard (if there are enough): clients whose
    shards do not move continue while the rest wait.
    """

    def __init__(self, number: int, shards: Sequence[ShardId], course: Course) -> None:
        self.record = Record(number)
        self.failure: BaseException | None = None
        """A bug that ended the thread."""
        self._shards = list(shards)
        self._near = len(shards) if course.map is not None else min(CONNECTIONS, len(shards))
        self._course = course
        self._random = random.Random(number)  # noqa: S311  # no secret; every run draws alike
        self._random.shuffle(self._shards)
        self._sessions: OrderedDict[ShardId | NodeName, Session | RoutedSession] = OrderedDict()
        self._turn = 0
        self._lock = threading.Lock()
        """Of the record, and of the rows that are busy."""
        self._busy: set[int] = set()
        """Rows that a running operation updates or reads."""
        self._warm = threading.Event()
        # A daemon: a thread that waits forever must not block the end of the process.
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"client-{number}")

    def warm_up(self) -> None:
        """Run once what is slow the first time, so that no latency includes it."""
        self._thread.start()

    def is_warm(self, seconds: float) -> bool:
        """Wait until it is ready to start; return whether it is."""
        return self._warm.wait(seconds)

    def join(self, seconds: float | None) -> bool:
        """Wait for the end; return whether it has ended."""
        if self._thread.ident is not None:
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001  # `Load.stop` raises it
            self.failure = error

    def _warm_one(self, number: int, shard: ShardId) -> None:
        """Run what is slow only the first time; errors here are ignored, they will recur."""
        if self._course.stop.is_set():
            return
        try:
            with self._session(number, self._to(shard)) as session:
                session.run(self._course.statements(shard).select, (b"0",))
        except Refused as error:
            logger.info("client %d, shard %d: %s", self.record.client, shard, error.message)

    def _operate(self, number: int, due: float) -> bool:
        """Run one operation to its end, and record it; return whether it was acknowledged."""
        with self._lock:
            shard = self._next_shard()
            kind, operation, row = operations.draw(
                self._random, self.record, shard, busy=self._busy
            )
            if row is not None:
                self._busy.add(row)
        refused = None
        try:
            fenced, acknowledge = self._attempt(number, shard, operation)
        except Refused as error:
            refused = error
        ended = time.perf_counter()
        at, outcome = ended - self._course.began, OK
        with self._lock:
            if refused is None:
                acknowledge()
                self.record.fenced += fenced
            else:
                outcome = self.record.failed(refused.code, refused.message, at)
            if row is not None:
                self._busy.discard(row)
            self.record.done(shard, kind, outcome, ended - due, at)
        if refused is not None:
            self._look(shard)
        return refused is None

    def _attempt(
        self, number: int, shard: ShardId, operation: Operation
    ) -> tuple[int, Acknowledge]:
        """Run an operation on the shard's node; give also 1 if it met the fence before, else 0.

        If clients use the map, an error of the fence makes them read it and retry with the same
        row: nothing was written. Raises Refused and Lost.
        """
        deadline = time.perf_counter() + FENCED_S
        fenced = 0
        while True:
            try:
                with self._session(number, self._to(shard)) as session:
                    return fenced, operation(session, self._course.statements(shard))
            except Lost:
                raise
            except Refused as error:
                by_map = self._course.map is not None and error.code in FENCE
                if time.perf_counter() > deadline or not (by_map or error.code == MOVED):
                    raise
                fenced = 1
                self._look(shard)

    def _look(self, shard: ShardId) -> None:
        """If clients use the map, find out whether the shard is on another node now."""
        if (db := self._course.map) is not None:
            with suppress(ShardctlError, psycopg.Error):  # the next operation reports it
                db._nodes.look(db.node_of(shard), [shard])  # noqa: SLF001  # as the router does

    def _to(self, shard: ShardId) -> ShardId | NodeName:
        return shard if self._course.map is None else self._course.map.node_of(shard)

    def _next_shard(self) -> ShardId:
        """Choose a shard: first each in turn, then at random among those that are near.

        With more shards than connections, these change slowly: otherwise most operations would
        only log in and out.
        """
        turn, count = self._turn, len(self._shards)
        self._turn += 1
        if turn < count:
            return self._shards[turn]
        first = turn // _STAY if self._near < count else 0
        return self._shards[(first + int(self._random.random() * self._near)) % count]

    def cut(self) -> None:
        """Abort the current operation; a login ends by itself, after its timeout."""
        for session in list(self._sessions.values()):
            session.cut()

    def _work(self) -> None:
        try:
            for shard in self._shards[:CONNECTIONS]:
                self._warm_one(self.record.client, shard)
            self._warm.set()
            self._course.go.wait()
            # Spread the starts, so that clients do not operate at the same instants.
            due = self._course.began - self._random.random() * self._course.interval
            while not self._course.stop.is_set() and time.perf_counter() < self._course.ends:
                if self._course.interval:
                    # Operations that a stall delayed are not made up: the rate is never exceeded.
                    due = max(due + self._course.interval, time.perf_counter())
                    if self._course.stop.wait(due - time.perf_counter()):
                        break
                if not self._operate(self.record.client, time.perf_counter()):
                    self._course.stop.wait(_AFTER_ERROR_S)
        finally:
            for session in self._sessions.values():
                session.close()

    @contextmanager
    def _session(self, number: int, to: ShardId | NodeName) -> Iterator[Session | RoutedSession]:
        """Give a connection by the pooler of that number, which stays open unless it is lost."""
        session = self._sessions.get(to)
        if session is None:
            while len(self._sessions) >= CONNECTIONS:
                self._sessions.popitem(last=False)[1].close()
            if self._course.router is not None:
                session = RoutedSession(self._course.router, to)  # type: ignore[arg-type]  # a shard
            else:
                session = Session(self._course.route.conninfo(number, to))
            self._sessions[to] = session
        else:
            self._sessions.move_to_end(to)
        try:
            yield session
        except Lost:
            self._sessions.pop(to).close()
            raise
