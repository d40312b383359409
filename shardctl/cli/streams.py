"""Standard streams that are closed, full, or have lost their reader; and signals as Ctrl-C."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardctl.errors import ShardctlError
from shardctl.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardctl.cli.context import Settings


class ResultUnwritten(ShardctlError):
    """A result that could not be written to standard output."""

    def __init__(self, reason: str, *, done: bool) -> None:
        super().__init__(
            f"standard output: {reason}",
            hint="all changes were made, but the result is incomplete: run the same command again "
            "to check that nothing is left"
            if done
            else "the result is incomplete: free space, then run the command again",
        )
        self.exit_code = 3 if done else 1


class Stream:
    """A text stream that obeys no text, fails once, and discards all later output.

    It calls `failed` with the error, which may raise one. `drawn` is for what rich has escaped.
    """

    def __init__(
        self, stream: Any, failed: Callable[[OSError], None], *, drawn: bool = False
    ) -> None:
        self._stream = stream
        self._failed = failed
        self._drawn = drawn

    @property
    def rich_proxied_file(self) -> Stream:
        """Give the stream to which rich writes colours and movements of the cursor."""
        return Stream(self._stream, self._failed, drawn=True)

    def __getattr__(self, name: str) -> Any:
        """Delegate all other attributes to the stream."""
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write, or discard."""
        try:
            self._stream.write(text if self._drawn else printable(text))
        except OSError as error:
            self._discard(error)
        return len(text)

    def flush(self) -> None:
        """Flush, or discard."""
        try:
            self._stream.flush()
        except OSError as error:
            self._discard(error)

    def _discard(self, error: OSError) -> None:
        # The buffered text would fail again with every flush, including the interpreter's last one.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
        self._failed(error)


class Streams:
    """The streams of a run: a failed output ends a command that only reads, but not a change."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.unwritten: ResultUnwritten | None = None
        """The error to report at the end of a command that continued."""

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Guard standard output and standard error while a block runs."""
        _open_closed()
        before = sys.stdout, sys.stderr
        sys.stdout = Stream(sys.stdout, self._output_failed)
        sys.stderr = Stream(sys.stderr, lambda _: None)
        try:
            yield
        finally:
            sys.stdout, sys.stderr = before

    def _output_failed(self, error: OSError) -> None:
        changes = self._settings.changes
        left = error.errno == errno.EPIPE  # the reader has ended, as `head` does
        if left and not changes:
            raise error
        if left:
            return
        unwritten = ResultUnwritten(error.strerror or str(error), done=changes)
        if not changes:
            raise unwritten
        self.unwritten = unwritten


def _open_closed() -> None:
    """Open closed standard streams: otherwise another file would get the number and the output."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            nowhere = Path(os.devnull).open("w" if number else "r", encoding="utf-8")  # noqa: SIM115  # until the end
            setattr(sys, name, nowhere)


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
