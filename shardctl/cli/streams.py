"""Standard streams that are closed, full, or that are read by no one any more."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardctl.errors import ShardctlError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardctl.cli.context import Settings


class ResultUnwritten(ShardctlError):
    """A result that standard output did not take."""

    def __init__(self, reason: str, *, done: bool) -> None:
        super().__init__(
            f"standard output: {reason}",
            hint="what the command changes is done, and its result is not complete: "
            "run the same command again to see that nothing is left"
            if done
            else "the result is not complete: make room, and run the command again",
        )
        self.exit_code = 3 if done else 1


class Stream:
    """A text stream that fails once: what comes afterwards is thrown away.

    `failed` is called with the failure, and may raise something.
    """

    def __init__(self, stream: Any, failed: Callable[[OSError], None]) -> None:
        self._stream = stream
        self._failed = failed

    def __getattr__(self, name: str) -> Any:
        """Be the stream in all else."""
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write, or throw away."""
        try:
            self._stream.write(text)
        except OSError as error:
            self._throw_away(error)
        return len(text)

    def flush(self) -> None:
        """Flush, or throw away."""
        try:
            self._stream.flush()
        except OSError as error:
            self._throw_away(error)

    def _throw_away(self, error: OSError) -> None:
        # What the buffer holds would fail again with every flush, the interpreter's last one too.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
        self._failed(error)


class Streams:
    """The streams of a run: output that fails ends what only reads, and no change midway."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.unwritten: ResultUnwritten | None = None
        """What to tell at the end of a command that went on."""

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
        left = error.errno == errno.EPIPE  # its reader has what it wanted, as `head` does
        if left and not changes:
            raise error
        if left:
            return
        unwritten = ResultUnwritten(error.strerror or str(error), done=changes)
        if not changes:
            raise unwritten
        self.unwritten = unwritten


def _open_closed() -> None:
    """Open what was closed at the start: another file would get its number, and the output."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            nowhere = Path(os.devnull).open("w" if number else "r", encoding="utf-8")  # noqa: SIM115  # until the end
            setattr(sys, name, nowhere)
