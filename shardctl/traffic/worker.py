"""A thread of the load: it warms up, starts with the other threads, and records its operations."""

from __future__ import annotations

import math
import random
import threading
from typing import TYPE_CHECKING

from shardctl.traffic.record import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardctl.topology.model import ShardId
    from shardctl.traffic.client_routes import ClientRoute
    from shardctl.traffic.owners import Owners


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
