"""Measures how long the load's own process was delayed, which adds to its latencies."""

from __future__ import annotations

import threading
import time

_EVERY_S = 0.005


class Heartbeat:
    """A thread that wakes every 5 ms and records its longest delay.

    All threads are delayed alike when they lack a processor or the interpreter's lock.
    """

    def __init__(self) -> None:
        self._stopped = threading.Event()
        self._late = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True, name="heartbeat")

    @property
    def latest_ms(self) -> float:
        """The longest delay until now, in ms."""
        return round(self._late * 1000, 3)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        due = time.perf_counter() + _EVERY_S
        while not self._stopped.wait(_EVERY_S):
            now = time.perf_counter()
            self._late = max(self._late, now - due)
            due = now + _EVERY_S
