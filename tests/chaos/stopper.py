"""shardctl, which kills or stops itself before its Nth sub-step: `python -m tests.chaos.stopper`.

Arguments are the number, the signal, and what shardctl is called with. A sub-step is a step of a
move or a span of its cutover's timeline: what is new among them needs no word here.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from shardctl.cli.app import main
from shardctl.moves.context import Timeline

if TYPE_CHECKING:
    from collections.abc import Iterator


def stop_at(number: int, which: signal.Signals) -> None:
    """Send this process a signal before so many sub-steps."""
    whole, passed = Timeline.span, itertools.count(1)

    @contextmanager
    def span(self: Timeline, name: str) -> Iterator[Any]:
        if next(passed) == number:
            os.kill(os.getpid(), which)
        with whole(self, name) as value:
            yield value

    Timeline.span = span  # type: ignore[method-assign]


if __name__ == "__main__":
    stop_at(int(sys.argv[1]), signal.Signals[sys.argv[2]])
    sys.argv = ["shardctl", *sys.argv[3:]]
    main()
