"""One client of the load: a thread that runs one operation after the other, and records each."""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardctl.traffic import operations
from shardctl.traffic.operations import MOVED, STATEMENTS, Lost, Refused, RoutedSession, Session
from shardctl.traffic.record import OK, Record

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    from shardctl.router import ShardedDatabase
    from shardctl.topology.model import NodeName, ShardId
    from shardctl.traffic.client_routes import ClientRoute, Statements
    from shardctl.traffic.fleet import Owners
    from shardctl.traffic.operations import Operation

logger = logging.getLogger(__name__)

FENCE = frozenset({"42P01", "3F000"})
"""SQLSTATEs of the fence: a table or schema with this name is missing."""

CONNECTIONS = 64
"""The most open connections of a client: 8 clients stay below the sandbox's max_client_conn."""
_AFTER_ERROR_S = 0.02
_MAP_S = 0.025
"""How long an operation waits for a newer map after an error of the fence, before it retries."""
_STAY = 8
"""Operations before a client replaces one of the shards that it has connections for."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The rate of a client's operations, and its patience with a fence."""

    interval: float
    """Seconds from the start of an operation to that of the next, 0 for no limit."""
    patience: float
    """How many seconds to retry an operation after an error of the fence."""


@dataclass(slots=True)
class Course:
    """What the workers of a load have in common; times are those of `perf_counter`."""

    route: ClientRoute
    router: ShardedDatabase | None
    owners: Owners
    pace: Pace
    began: float = field(default_factory=time.perf_counter)
    ends: float = math.inf
    go: threading.Event = field(default_factory=threading.Event)
    """Whether it has begun."""
    stop: threading.Event = field(default_factory=threading.Event)


class Worker(ABC):
    """Shared part of the closed loop (Client) and the open loop (Logins), with its `record`."""

    def __init__(self, number: int, shards: Sequence[ShardId], course: Course) -> None:
        self.record = Record(number)
        self.failure: BaseException | None = None
        """A bug that ended the thread."""
        self._shards = list(shards)
        self._course = course
        self._random = random.Random(number)  # noqa: S311  # no secret; every run draws alike
        self._turn = 0
        self._statements: dict[ShardId, Statements] = {}
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

    @abstractmethod
    def cut(self) -> None:
        """Abort what runs; a login ends by itself, after its timeout."""

    @abstractmethod
    def _work(self) -> None:
        """Warm up and report it, wait for the start, and run operations until the end."""

    @abstractmethod
    def _session(
        self, number: int, to: ShardId | NodeName
    ) -> AbstractContextManager[Session | RoutedSession]:
        """Give a connection with a shard or node, by the pooler of that number; raises Lost."""

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
                session.run(self._statements_of(shard).select, (b"0",))
        except Refused as error:
            logger.info("client %d, shard %d: %s", self.record.client, shard, error.message)

    def _attempt(self, number: int, shard: ShardId, operation: Operation) -> int:
        """Run an operation on the shard's node; return 1 if it met the fence before, else 0.

        If clients use the map, an error of the fence makes them read it and retry with the same
        row: nothing was written. Raises Refused and Lost.
        """
        deadline = time.perf_counter() + self._course.pace.patience
        fenced = 0
        while True:
            known = self._course.owners.newest.version
            try:
                with self._session(number, self._to(shard)) as session:
                    operation.run(session, self._statements_of(shard))
            except Lost:
                raise
            except Refused as error:
                by_map = self._course.route.by_map and error.code in FENCE
                if time.perf_counter() > deadline or not (by_map or error.code == MOVED):
                    raise
                fenced = 1
                if by_map:
                    self._course.owners.newer(known, seconds=_MAP_S)
            else:
                return fenced

    def _to(self, shard: ShardId) -> ShardId | NodeName:
        return self._course.owners.newest.owners[shard] if self._course.route.by_map else shard

    def _statements_of(self, shard: ShardId) -> Statements:
        found = self._statements.get(shard)
        if found is None:
            routed = self._course.route.kind == "router"
            made = STATEMENTS if routed else self._course.route.statements(shard)
            found = self._statements[shard] = made
        return found


class Client(Worker):
    """A client with its own shards; `record` has what it did.

    It waits for each answer without a limit, so that a stall is one long operation of every
    affected client, not many. No two clients share a shard (if there are enough): clients whose
    shards do not move continue while the rest wait.
    """

    def __init__(self, number: int, shards: Sequence[ShardId], course: Course) -> None:
        super().__init__(number, shards, course)
        self._random.shuffle(self._shards)
        self._sessions: OrderedDict[ShardId | NodeName, Session | RoutedSession] = OrderedDict()

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
            due = self._course.began - self._random.random() * self._course.pace.interval
            while not self._course.stop.is_set() and time.perf_counter() < self._course.ends:
                if self._course.pace.interval:
                    # Operations that a stall delayed are not made up: the rate is never exceeded.
                    due = max(due + self._course.pace.interval, time.perf_counter())
                    if self._course.stop.wait(due - time.perf_counter()):
                        break
                self._operate()
        finally:
            for session in self._sessions.values():
                session.close()

    def _operate(self) -> None:
        """Run one operation to its end, and record it."""
        shard = self._next_shard()
        kind, operation, _ = operations.draw(self._random, self.record, shard)
        began = time.perf_counter()
        try:
            self.record.fenced += self._attempt(self.record.client, shard, operation)
        except Refused as error:
            ended = time.perf_counter()
            at = ended - self._course.began
            outcome = self.record.failed(error.code, error.message, at)
            self.record.done(shard, kind, outcome, ended - began, at)
            self._course.owners.look()
            self._course.stop.wait(_AFTER_ERROR_S)
        else:
            ended = time.perf_counter()
            operation.acknowledge()
            self.record.done(shard, kind, OK, ended - began, ended - self._course.began)

    def _next_shard(self) -> ShardId:
        """Choose a shard: first each in turn, then at random among those with connections.

        With more shards than connections, these change slowly: otherwise most operations would
        only log in and out.
        """
        turn, count = self._turn, len(self._shards)
        self._turn += 1
        if turn < count:
            return self._shards[turn]
        near = min(count, CONNECTIONS) if not self._course.route.by_map else count
        first = turn // _STAY if near < count else 0
        return self._shards[(first + int(self._random.random() * near)) % count]

    @contextmanager
    def _session(self, number: int, to: ShardId | NodeName) -> Iterator[Session | RoutedSession]:
        """Give the connection with a shard or node, which stays open unless it is lost."""
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
