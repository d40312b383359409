"""One client of the load: a thread that runs one operation after the other, and records each."""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl.traffic import operations
from shardctl.traffic.operations import MOVED, STATEMENTS, Lost, Refused, RoutedSession, Session
from shardctl.traffic.record import OK, Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardctl.router import ShardedDatabase
    from shardctl.topology.model import NodeName, ShardId
    from shardctl.traffic.client_routes import ClientRoute, Statements
    from shardctl.traffic.fleet import Owners
    from shardctl.traffic.operations import Operation


class Worker:
    """Shared part of the closed loop (Client) and the open loop (Logins), with its `record`."""

    def __init__(
        self,
        number: int,
        shards: Sequence[ShardId],
        *,
        route: ClientRoute,
        owners: Owners,
        stop: threading.Event,
        name: str,
    ) -> None:
        self.record = Record(number)
        self.failure: BaseException | None = None
        """A bug that ended the thread."""
        self._shards = list(shards)
        self._way = route
        self._owners = owners
        self._stop = stop
        self._random = random.Random(number)  # noqa: S311  # no secret; every run draws alike
        self._turn = 0
        self._warm = threading.Event()
        self._go = threading.Event()
        self._began = 0.0
        self._ends = math.inf
        # A daemon: a thread that waits forever must not block the end of the process.
        self._thread = threading.Thread(target=self._run, daemon=True, name=name)

    def warm_up(self) -> None:
        """Run once what is slow the first time, so that no latency includes it."""
        self._thread.start()

    def is_warm(self, seconds: float) -> bool:
        """Wait until it is ready to start; return whether it is."""
        return self._warm.wait(seconds)

    def begin(self, began: float, ends: float) -> None:
        """Start it at `began`, a time of `perf_counter`; it ends after `ends` or at `stop`.

        A second call with the same times changes nothing.
        """
        self._began = began
        self._ends = ends
        self._go.set()

    def join(self, seconds: float | None) -> bool:
        """Wait for the end; return whether it has ended."""
        if self._thread.ident is not None:
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def cut(self) -> None:
        """Abort the current operation."""
        raise NotImplementedError

    def _work(self) -> None:
        """Warm up and report it, wait for the start, and run operations until the end."""
        raise NotImplementedError

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001  # `Load.stop` raises it
            self.failure = error


logger = logging.getLogger(__name__)

FENCE = frozenset({"42P01", "3F000"})
"""SQLSTATEs of the fence: a table or schema with this name is missing."""

CONNECTIONS = 64
"""The most open connections of a client: 8 clients stay below the sandbox's max_client_conn."""
_AFTER_ERROR_S = 0.02
MAP_S = 0.025
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


class Client(Worker):
    """A client with its own shards; `record` has what it did.

    It waits for each answer without a limit, so that a stall is one long operation of every
    affected client, not many. No two clients share a shard (if there are enough): clients whose
    shards do not move continue while the rest wait.
    """

    def __init__(
        self,
        number: int,
        shards: Sequence[ShardId],
        *,
        route: ClientRoute,
        router: ShardedDatabase | None,
        owners: Owners,
        pace: Pace,
        stop: threading.Event,
    ) -> None:
        super().__init__(
            number, shards, route=route, owners=owners, stop=stop, name=f"client-{number}"
        )
        self._router = router
        self._pace = pace
        self._random.shuffle(self._shards)
        self._sessions: OrderedDict[ShardId | NodeName, Session | RoutedSession] = OrderedDict()
        self._statements: dict[ShardId, Statements] = {}

    def cut(self) -> None:
        """Abort the current operation; a login ends by itself, after its timeout."""
        for session in list(self._sessions.values()):
            session.cut()

    def _work(self) -> None:
        try:
            self._open_connections()
            self._warm.set()
            self._go.wait()
            # Spread the starts, so that clients do not operate at the same instants.
            due = self._began - self._random.random() * self._pace.interval
            while not self._stop.is_set() and time.perf_counter() < self._ends:
                if self._pace.interval:
                    # Operations that a stall delayed are not made up: the rate is never exceeded.
                    due = max(due + self._pace.interval, time.perf_counter())
                    if self._stop.wait(due - time.perf_counter()):
                        break
                self._operate()
        finally:
            for session in self._sessions.values():
                session.close()

    def _open_connections(self) -> None:
        """Run what is slow only the first time; errors here are ignored, they will recur."""
        for shard in self._shards[:CONNECTIONS]:
            to = self._owners.newest.owners[shard] if self._way.by_map else shard
            try:
                self._session(to).run(self._statements_of(shard).select, (b"0",))
            except Lost:
                self._forget(to)
            except Refused as error:
                logger.info("client %d, shard %d: %s", self.record.client, shard, error.message)
            if self._stop.is_set():
                break

    def _operate(self) -> None:
        """Run one operation to its end, and record it."""
        shard = self._next_shard()
        kind, operation, _ = operations.draw(self._random, self.record, shard)
        began = time.perf_counter()
        try:
            self._attempt(shard, operation, deadline=began + self._pace.patience)
        except Refused as error:
            ended = time.perf_counter()
            at = ended - self._began
            outcome = self.record.failed(error.code, error.message, at)
            self.record.done(shard, kind, outcome, ended - began, at)
            self._owners.look()
            self._stop.wait(_AFTER_ERROR_S)
        else:
            ended = time.perf_counter()
            operation.acknowledge()
            self.record.done(shard, kind, OK, ended - began, ended - self._began)

    def _next_shard(self) -> ShardId:
        """Choose a shard: first each in turn, then at random among those with connections.

        With more shards than connections, these change slowly: otherwise most operations would
        only log in and out.
        """
        turn, count = self._turn, len(self._shards)
        self._turn += 1
        if turn < count:
            return self._shards[turn]
        near = min(count, CONNECTIONS) if not self._way.by_map else count
        first = turn // _STAY if near < count else 0
        return self._shards[(first + int(self._random.random() * near)) % count]

    def _attempt(self, shard: ShardId, operation: Operation, *, deadline: float) -> None:
        """Run an operation on the shard's node.

        If clients use the map, an error of the fence makes them read it and retry with the same
        row: nothing was written. Raises Refused and Lost.
        """
        fenced = 0
        while True:
            known = self._owners.newest
            to = known.owners[shard] if self._way.by_map else shard
            try:
                operations.run(operation, self._session(to), self._statements_of(shard))
            except Lost:
                self._forget(to)
                raise
            except Refused as error:
                late = time.perf_counter() > deadline
                if error.code == MOVED and not late:  # as an application would do
                    fenced = 1
                    continue
                if not self._way.by_map or error.code not in FENCE or late:
                    raise
                fenced = 1
                self._owners.newer(known.version, seconds=MAP_S)
            else:
                self.record.fenced += fenced
                return

    def _session(self, to: ShardId | NodeName) -> Session | RoutedSession:
        """Return the connection with a shard or node, opened if needed; raises Lost."""
        session = self._sessions.get(to)
        if session is None:
            while len(self._sessions) >= CONNECTIONS:
                self._sessions.popitem(last=False)[1].close()
            session = self._open(to)
            self._sessions[to] = session
        else:
            self._sessions.move_to_end(to)
        return session

    def _open(self, to: ShardId | NodeName) -> Session | RoutedSession:
        if self._router is not None:
            return RoutedSession(self._router, to)  # type: ignore[arg-type]  # a shard
        return Session(self._way.conninfo(self.record.client, to))

    def _forget(self, to: ShardId | NodeName) -> None:
        """Close the connection with a shard or node, if it is open."""
        if to in self._sessions:
            self._sessions.pop(to).close()

    def _statements_of(self, shard: ShardId) -> Statements:
        found = self._statements.get(shard)
        if found is None:
            made = STATEMENTS if self._router is not None else self._way.statements(shard)
            found = self._statements[shard] = made
        return found
