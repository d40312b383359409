"""Signals that end a process: during a cutover they are deferred until it can stop safely."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from shardctl.errors import Interrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

_FIRST = "interrupted: shardctl completes or undoes the cutover first, within --max-pause"
_AGAIN = "interrupt ignored: shardctl is still completing or undoing the cutover"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Deferred:
    """Counts deferred signals; `require_none` stops where the cutover may stop."""

    def __init__(self, notice: Callable[[str], None]) -> None:
        self.asked = 0
        self._notice = notice

    def require_none(self, what: str) -> None:
        """Raise Interrupted with the message `what` if a signal came."""
        if self.asked:
            raise Interrupted(what, hint="run `shardctl moves resume` to continue the move")

    def note(self, number: int, _frame: FrameType | None) -> None:
        """Record a signal."""
        self.asked += 1
        if number != signal.SIGHUP:  # the terminal is gone
            self._notice(_FIRST if self.asked == 1 else _AGAIN)


@contextmanager
def deferred(notice: Callable[[str], None]) -> Iterator[Deferred]:
    """Defer Ctrl-C, SIGTERM and SIGHUP while a block runs; report them with `notice`.

    Only the main thread may handle signals; other threads get none, so nothing is deferred there.
    """
    held = Deferred(notice)
    if threading.current_thread() is not threading.main_thread():
        yield held
        return
    # None is a handler that is not Python's; an ignored signal stays ignored.
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    ours = {n: h for n, h in before.items() if h is not None and h != signal.SIG_IGN}
    try:
        for number in ours:
            signal.signal(number, held.note)
        yield held
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)
