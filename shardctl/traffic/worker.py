"""A thread of the load: it warms up, begins when it is told to, and notes what it has done."""

from __future__ import annotations

import math
import random
import threading
from typing import TYPE_CHECKING

from shardctl.traffic.record import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardctl.topology.model import ShardId
    from shardctl.traffic.owners import Owners
    from shardctl.traffic.ways import Way


class Worker:
    """What a closed loop (Client) and the open one (Logins) share; what it did is in `record`."""

    def __init__(
        self,
        number: int,
        shards: Sequence[ShardId],
        *,
        way: Way,
        owners: Owners,
        stop: threading.Event,
        name: str,
    ) -> None:
        self.record = Record(number)
        self.failure: BaseException | None = None
        """A bug that ended the thread."""
        self._shards = list(shards)
        self._way = way
        self._owners = owners
        self._stop = stop
        self._random = random.Random(number)  # noqa: S311  # no secret; every run draws alike
        self._turn = 0
        self._warm = threading.Event()
        self._go = threading.Event()
        self._began = 0.0
        self._ends = math.inf
        # A daemon: one that waits for ever must not hold up the end of the process.
        self._thread = threading.Thread(target=self._run, daemon=True, name=name)

    def warm_up(self) -> None:
        """Do once what is slow the first time, so that this is in nobody's latency."""
        self._thread.start()

    def is_warm(self, seconds: float) -> bool:
        """Wait until it is ready to begin; tell whether it is."""
        return self._warm.wait(seconds)

    def begin(self, began: float, ends: float) -> None:
        """Let it begin at `began`, a time of `perf_counter`, and end after `ends` or when told.

        Once is enough; a second time changes nothing if it says the same.
        """
        self._began = began
        self._ends = ends
        self._go.set()

    def join(self, seconds: float | None) -> bool:
        """Wait for the end; tell whether it has come."""
        if self._thread.ident is not None:
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def cut(self) -> None:
        """Break off what it waits for."""
        raise NotImplementedError

    def _work(self) -> None:
        """Warm up and say so, wait for the begin, and do operations until the end."""
        raise NotImplementedError

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001  # whoever waits for the thread raises it
            self.failure = error
