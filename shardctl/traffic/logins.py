"""The open loop: a login for every operation, at a fixed rate, however long answers take."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import cache
from typing import TYPE_CHECKING

from shardctl.traffic.client import Client
from shardctl.traffic.operations import LOST, Lost, Session

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Future

    from shardctl.topology.model import NodeName, ShardId
    from shardctl.traffic.client import Course

MOST = 400
"""The most connections at once; below the sandbox's max_client_conn, and a process's file limit.

Further operations wait for one of them to end, and their latency includes the wait.
"""

MOST_DIRECT = 40
"""The same without a pooler: PostgreSQL has 100 connections, and clients and moves need theirs."""

_WAITING = 10_000
"""The most operations that may be due and not done; then no more become due."""
_WARMING = 16


class Logins(Client):
    """Operations that start at their scheduled time, each over its own connection.

    A client of the closed loop waits for its answer before its next operation, so a stall delays
    one operation. Here a stall delays all operations that become due during it, as with independent
    users of an application. Latencies count from the scheduled time, so that a delay of this
    process does not make them look shorter.
    """

    def __init__(
        self, number: int, shards: Sequence[ShardId], course: Course, *, rate: float
    ) -> None:
        super().__init__(number, shards, course)
        self._near = len(shards)
        self.rate = rate
        """Logins a second."""
        self.late_s = 0.0
        """The longest delay of an operation's start; latencies include it.

        It shows a rate that was not kept, for lack of a processor or of connections.
        """
        self._conninfo = cache(course.route.conninfo)
        self._open: set[Session] = set()
        self._due = threading.Semaphore(_WAITING)
        self._is_cut = False

    def cut(self) -> None:
        """Abort all running operations; a login ends by itself, after its timeout."""
        self._is_cut = True
        for session in self._open.copy():
            session.cut()

    def _work(self) -> None:
        most = MOST if self._course.route.poolers else MOST_DIRECT
        poolers = range(max(1, len(self._course.route.poolers)))
        with ThreadPoolExecutor(_WARMING) as pool:
            for shard in self._shards:
                for number in poolers:
                    pool.submit(self._warm_one, number, shard)
        self._warm.set()
        self._course.go.wait()
        number = 0
        with ThreadPoolExecutor(most) as pool:
            while (due := self._course.began + number / self.rate) < self._course.ends:
                if self._course.stop.wait(due - time.perf_counter()):
                    break
                self._due.acquire()
                pool.submit(self._start, number, due).add_done_callback(self._ended)
                number += 1

    def _ended(self, operation: Future[None]) -> None:
        self._due.release()
        if (error := operation.exception()) is not None:
            self.failure = self.failure or error
            self._course.stop.set()

    def _start(self, number: int, due: float) -> None:
        with self._lock:
            self.late_s = max(self.late_s, time.perf_counter() - due)
        self._operate(number, due)

    @contextmanager
    def _session(self, number: int, to: ShardId | NodeName) -> Iterator[Session]:
        """Log in, to the poolers in turn, and out."""
        if self._is_cut:
            raise Lost(LOST, "no answer when the load ended")
        pooler = number % max(1, len(self._course.route.poolers))
        with closing(Session(self._conninfo(pooler, to))) as session:
            self._open.add(session)
            try:
                yield session
            finally:
                self._open.discard(session)
