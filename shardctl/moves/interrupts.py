"""Signals that end a process, during a cutover: remembered, and heeded where it can be left."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from shardctl.errors import Interrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

_FIRST = "interrupted: the cutover ends first, one way or the other; it does not take long"
_AGAIN = "not now: the cutover is being ended"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Deferred:
    """Whether somebody wants to stop; `require_none` is for the places where one can."""

    def __init__(self, notice: Callable[[str], None]) -> None:
        self.asked = 0
        self._notice = notice

    def require_none(self, what: str) -> None:
        """Stop here if somebody asked for it; raises Interrupted, which says what was done."""
        if self.asked:
            raise Interrupted(what, hint="`shardctl moves resume` goes on with it")

    def note(self, number: int, _frame: FrameType | None) -> None:
        """Take a signal."""
        self.asked += 1
        if number != signal.SIGHUP:  # who would read it has gone
            self._notice(_FIRST if self.asked == 1 else _AGAIN)


@contextmanager
def deferred(notice: Callable[[str], None]) -> Iterator[Deferred]:
    """Hold Ctrl-C, SIGTERM and SIGHUP back while a block runs; tell by `notice` what was heard.

    Only the main thread may handle signals; in others, which get none, nothing is held back.
    """
    held = Deferred(notice)
    if threading.current_thread() is not threading.main_thread():
        yield held
        return
    # None is a handler that is not Python's; who ignores a signal is not to hear of it now.
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    ours = {n: h for n, h in before.items() if h is not None and h != signal.SIG_IGN}
    try:
        for number in ours:
            signal.signal(number, held.note)
        yield held
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)
