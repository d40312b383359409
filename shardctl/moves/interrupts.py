"""Ctrl-C during a cutover: it is remembered, and heeded where the cutover can be left."""

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


class Deferred:
    """Whether somebody wants to stop; `require_none` is for the places where one can."""

    def __init__(self, notice: Callable[[str], None]) -> None:
        self.asked = 0
        self._notice = notice

    def require_none(self, what: str) -> None:
        """Stop here if somebody asked for it; raises Interrupted, which says what was done."""
        if self.asked:
            raise Interrupted(what, hint="`shardctl moves resume` goes on with it")

    def note(self, _signal: int, _frame: FrameType | None) -> None:
        """Take a signal."""
        self.asked += 1
        self._notice(_FIRST if self.asked == 1 else _AGAIN)


@contextmanager
def deferred(notice: Callable[[str], None]) -> Iterator[Deferred]:
    """Hold Ctrl-C back while a block runs, and tell by `notice` that it was heard.

    Only the main thread may handle signals; in others, which get none, nothing is held back.
    """
    held = Deferred(notice)
    before = signal.getsignal(signal.SIGINT)
    # None is a handler that is not Python's; who ignores the signal is not to hear of it now.
    ours = threading.current_thread() is threading.main_thread()
    if not ours or before is None or before == signal.SIG_IGN:
        yield held
        return
    signal.signal(signal.SIGINT, held.note)
    try:
        yield held
    finally:
        signal.signal(signal.SIGINT, before)
