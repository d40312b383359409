"""Standard streams that are closed, full, or have lost their reader."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from shardctl.cli.messages import Messages
from shardctl.cli.stream import Stream
from shardctl.errors import ShardctlError

if TYPE_CHECKING:
    from collections.abc import Iterator

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
        sys.stderr = Messages(sys.stderr, as_json=lambda: self._settings.log_format == "json")
        try:
            yield
        finally:
            sys.stderr.flush()
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
