"""Progress of long work as bars on standard error, where that is a terminal."""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import TYPE_CHECKING

from shardctl.fanout import Progress, Silent

if TYPE_CHECKING:
    from collections.abc import Iterator

    import rich.progress


@contextlib.contextmanager
def bars() -> Iterator[Progress]:
    """Show a bar for each key (a node) with phase, done/total, rate and ETA."""
    if not sys.stderr.isatty():
        yield Silent()
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.fields[key]}"),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as drawn:
        yield _Bars(drawn)


class _Bars:
    def __init__(self, drawn: rich.progress.Progress) -> None:
        self._drawn = drawn
        self._tasks: dict[str, rich.progress.TaskID] = {}
        self._lock = threading.Lock()

    def expect(self, key: str, phase: str, total: int) -> None:
        with self._lock:
            if key in self._tasks:
                self._drawn.reset(self._tasks[key], total=total, description=phase)
            else:
                self._tasks[key] = self._drawn.add_task(phase, total=total, key=key, rate="")

    def advance(self, key: str, done: int = 1) -> None:
        with self._lock:
            task = self._tasks[key]
            self._drawn.advance(task, done)
            speed = self._drawn.tasks[task].speed
            self._drawn.update(task, rate=f"{speed:.0f}/s" if speed else "")
