"""Treats signals that end a process as Ctrl-C, so that remote commands are ended first."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def as_ctrl_c() -> Iterator[None]:
    """Make SIGTERM and SIGHUP (a lost terminal) raise KeyboardInterrupt while a block runs.

    An ignored signal, as under nohup, stays ignored. Only the main thread may handle signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    # None is a handler that is not Python's.
    ours = {n: h for n, h in before.items() if h is not None and h != signal.SIG_IGN}
    try:
        for number in ours:
            signal.signal(number, signal.default_int_handler)
        yield
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)
