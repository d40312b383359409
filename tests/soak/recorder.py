"""Takes down what clients do, in memory for the checker and as JSON lines for people."""

from __future__ import annotations

import itertools
import threading
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any, TextIO

from tests.soak.history import Op, line

if TYPE_CHECKING:
    import random
    from pathlib import Path


class Recorder:
    """All operations, from any thread; and all events of the schedule."""

    def __init__(self, directory: Path) -> None:
        self.ops: list[Op] = []
        self.began = time.monotonic()
        self._tokens = itertools.count(1)
        self._known: dict[int, list[int]] = defaultdict(list)
        self._lock = threading.Lock()
        self._clients: TextIO = (directory / "clients.jsonl").open("w", encoding="utf-8")
        self._events: TextIO = (directory / "events.jsonl").open("w", encoding="utf-8")

    def token(self) -> int:
        """Give a token that no other row has."""
        return next(self._tokens)

    def add(self, op: Op) -> None:
        with self._lock:
            self.ops.append(op)
            if op.kind == "write" and op.outcome == "acknowledged":
                self._known[op.shard].append(op.token)
            self._clients.write(line(op) + "\n")

    def event(self, entry: Any) -> None:
        """Take down what the schedule did."""
        with self._lock:
            self._events.write(line(entry) + "\n")
            self._events.flush()

    def some(self, shard: int, count: int, chance: random.Random) -> tuple[int, ...]:
        """Give tokens of acknowledged rows: the newest, and others at random."""
        known = self._known[shard]
        newest = known[-count:]
        older = [known[int(chance.random() * len(known))] for _ in newest]
        return tuple(dict.fromkeys([*newest, *older]))

    def close(self) -> None:
        self._clients.close()
        self._events.close()
