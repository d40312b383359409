"""Measures a phase of long work, and writes sizes, times and long lists for people."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

BYTES = "bytes"
"""The unit of a phase that counts bytes; any other unit is a noun in the plural."""

WINDOW_S = 15.0
"""The rate is that of the last seconds, so a rate of an earlier time is never shown."""
_LEAST_S = 0.5
_BETWEEN_S = 0.2


SHOWN = 5
"""How many names or sentences are listed; the rest is counted."""


def listed(names: Sequence[str], total: int | None = None, *, most: int = SHOWN) -> str:
    """Join the first few names, and count the rest.

    >>> listed(["a", "b"], 7), listed(["a", "b"]), listed(["a", "b"], most=1)
    ('a, b and 5 more', 'a, b', 'a and 1 more')
    """
    shown = names[:most]
    more = (len(names) if total is None else total) - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more > 0 else "")


def sentences(texts: Sequence[str], *, most: int = SHOWN) -> str:
    """Join the first few sentences, and count the rest.

    >>> sentences(["a is on", "b is off"]), sentences(["a is on", "b is off"], most=1)
    ('a is on; b is off', 'a is on; and 1 more')
    """
    more = [f"and {len(texts) - most:,} more"] if len(texts) > most else []
    return "; ".join([*texts[:most], *more])


def size(count: int | None) -> str:
    """Write bytes in the units of pg_size_pretty.

    >>> size(10239), size(10240), size(57344), size(98762087), size(None)
    ('10,239 bytes', '10 kB', '56 kB', '94 MB', '-')
    """
    if count is None:
        return "-"
    if abs(count) < 10240:
        return f"{count:,} bytes"
    value = count / 1024
    units = ["kB", "MB", "GB", "TB", "PB"]
    while abs(value) >= 10239.5 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{int(value + 0.5):,} {units[0]}"


def duration(seconds: float | None) -> str:
    """Write a time with its two largest units.

    >>> duration(12.7), duration(90), duration(7_500), duration(273_600), duration(None)
    ('12 s', '1 min 30 s', '2 h 5 min', '3 d 4 h', '-')
    """
    if seconds is None:
        return "-"
    left, parts = int(seconds), []
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        count, left = divmod(left, size)
        parts.append((count, unit))
    first = next((n for n, (count, _) in enumerate(parts) if count), len(parts) - 1)
    shown = [f"{count} {unit}" for count, unit in parts[first : first + 2]]
    return " ".join(shown[:1] if parts[first : first + 2][-1][0] == 0 else shown)


@dataclass(frozen=True, slots=True)
class Held:
    """The WAL that a source holds back for its target at one moment, in bytes.

    `lag` is what the target has not confirmed, None while nothing follows.
    """

    bytes: int
    limit: int | None
    lag: int | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """A phase at one moment; what is not known is None, times are in seconds.

    `total` is 0 where it is not known. `rate` is None, too, when progress has stopped. `waits_s`
    is set while the work waits for `waits`.
    """

    phase: str
    unit: str
    done: int
    total: int
    elapsed_s: float
    rate: float | None = None
    eta_s: float | None = None
    waits: str | None = None
    waits_s: float | None = None
    ended: bool = False
    """Whether there is nothing left to do."""
    held: Held | None = None


@dataclass(slots=True)
class _Meter:
    """What is counted of one phase."""

    phase: str
    total: int
    unit: str
    began: float = field(default_factory=time.monotonic)
    done: int = 0
    samples: deque[tuple[float, int]] = field(default_factory=deque)
    waits: tuple[str, float] | None = None
    ended: bool = False
    held: Held | None = None

    def read(self) -> Reading:
        """Give the figures of this moment."""
        now = time.monotonic()
        left = max(self.total - self.done, 0)
        over = self.ended or (self.total > 0 and left == 0)
        rate = None if over or self.waits else self._rate(now) or None
        return Reading(
            self.phase,
            self.unit,
            self.done,
            self.total,
            now - self.began,
            rate,
            left / rate if rate and self.total else None,
            self.waits[0] if self.waits else None,
            now - self.waits[1] if self.waits else None,
            over and not self.waits,
            self.held,
        )

    def _rate(self, now: float) -> float | None:
        """Give units a second since the window began; it falls by itself where nothing comes."""
        while len(self.samples) > 1 and self.samples[1][0] <= now - WINDOW_S:
            self.samples.popleft()
        since, before = self.samples[0]
        elapsed = now - max(since, now - WINDOW_S)
        return (self.done - before) / elapsed if elapsed >= _LEAST_S else None


class Meters:
    """Keeps the figures of each key, such as a node; threads may report and read at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: dict[str, _Meter] = {}

    def expect(self, key: str, phase: str, total: int, unit: str = "") -> None:
        """Begin `phase` of `key` with `total` units to come, 0 where not known.

        `unit` is BYTES, or what is counted, in the plural.
        """
        with self._lock:
            self._of[key] = one = _Meter(phase, total, unit)
            one.samples.append((one.began, 0))

    def advance(self, key: str, done: int = 1) -> None:
        """Count `done` more units of the phase, if it is more than none."""
        with self._lock:
            one, now = self._of[key], time.monotonic()
            one.done += max(done, 0)
            soon = len(one.samples) > 1 and now - one.samples[-1][0] < _BETWEEN_S
            one.samples.append((one.samples.pop()[0] if soon else now, one.done))

    def correct(self, key: str, total: int) -> None:
        """Set the total of the phase."""
        with self._lock:
            self._of[key].total = total

    def waits(self, key: str, reason: str | None) -> None:
        """Note what `key` waits for, None for nothing; the time runs on while that is the same.

        A key that has no phase is left out.
        """
        with self._lock:
            if (one := self._of.get(key)) and reason != (one.waits and one.waits[0]):
                one.waits = (reason, time.monotonic()) if reason else None

    def holds(self, key: str, held: Held) -> None:
        """Note the WAL that is held back for `key`; a key that has no phase is left out."""
        with self._lock:
            if key in self._of:
                self._of[key].held = held

    def end(self, key: str) -> None:
        """Note that the work of `key` is over, done or not."""
        with self._lock:
            if one := self._of.get(key):
                one.waits, one.ended = None, True

    def read(self) -> dict[str, Reading]:
        """Give the figures of every key, in the order of keys."""
        with self._lock:
            return {key: one.read() for key, one in sorted(self._of.items())}

    def at_work(self) -> dict[str, Reading]:
        """Give the figures of the keys whose work goes on."""
        return {key: one for key, one in self.read().items() if not one.ended}
