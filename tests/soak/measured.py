"""Memory of the poolers over the time, each second."""

from __future__ import annotations

import re
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from tests.soak.fleet import POOLERS

if TYPE_CHECKING:
    from tests.soak.fleet import Fleet

_EACH_S = 1.0


class Measured:
    """A thread that looks; `memory` has moments and kB."""

    def __init__(self, fleet: Fleet) -> None:
        self.memory: dict[str, list[tuple[float, int]]] = defaultdict(list)
        self._fleet = fleet
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(_EACH_S):
            for pooler in POOLERS:
                pid = self._fleet.pooler_pid(pooler)
                if pid is not None and (found := resident_kb(pid)):
                    self.memory[pooler].append((time.monotonic(), found))


def resident_kb(pid: int) -> int:
    """Give how much memory a process has; 0 when it has gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    return int(found[1]) if found else 0
