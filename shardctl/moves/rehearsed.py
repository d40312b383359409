"""Which tables a rehearsal has found equal: kept on the target, until the copy is made again."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from shardctl.moves import marks

if TYPE_CHECKING:
    from shardctl.postgres.connection import Connection

_EVERY_S = 1.0
_MARK = "compared"


@dataclass(frozen=True, slots=True)
class Equal:
    """A table that was equal on both nodes: its rows, its bytes, and the moment of its proof."""

    rows: int
    bytes: int
    at: datetime


class Results:
    """The tables that were equal, by name; `session` is with the target, and of no other use."""

    def __init__(self, session: Connection, move: str) -> None:
        self._session, self._move = session, move
        self._lock = threading.Lock()
        self._new: dict[str, Equal] = {}
        self._written = time.monotonic()
        kept = marks.notes(session, move, _MARK)
        self._next = max(kept, default=0) + 1
        self.equal = {
            name: Equal(rows, size, datetime.fromisoformat(at))
            for note in kept.values()
            for name, (rows, size, at) in note["tables"].items()
        }

    def add(self, table: str, found: Equal) -> None:
        """Keep a result; it is on the target within about a second, or after `flush`."""
        with self._lock:
            self.equal[table] = self._new[table] = found
            if time.monotonic() - self._written > _EVERY_S:
                self._write()

    def flush(self) -> None:
        """Write what is not on the target yet."""
        with self._lock:
            self._write()

    def _write(self) -> None:
        if not self._new:
            return
        tables = {n: [one.rows, one.bytes, one.at.isoformat()] for n, one in self._new.items()}
        note = {"tables": tables}
        marks.put(self._session, self._move, _MARK, attempt=self._next, note=note)
        self._next += 1
        self._new, self._written = {}, time.monotonic()
