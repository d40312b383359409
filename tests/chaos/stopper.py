"""shardctl, which kills or stops itself before a sub-step: `python -m tests.chaos.stopper`.

Arguments are its number or name, the signal, and what shardctl is called with. A sub-step is a step
of a move, the indexes of a copy (`rest`), or a span of the timeline of a cutover.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from shardctl.cli.app import main
from shardctl.moves import copy, step
from shardctl.moves.context import Timeline

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.moves.context import MoveContext


def stop_at(place: str, which: signal.Signals) -> None:
    """Send this process a signal before the sub-step of this number, or the first of this name."""
    whole, record, rest = Timeline.span, step._record, copy.make_rest
    passed, wanted = itertools.count(1), {place}

    def reach(name: str) -> None:
        for _ in wanted & {name, str(next(passed))}:
            wanted.clear()
            os.kill(os.getpid(), which)

    @contextmanager
    def span(self: Timeline, name: str) -> Iterator[Any]:
        reach(name)
        with whole(self, name) as value:
            yield value

    def recorded(context: MoveContext, one: step.Step, state: str, **named: Any) -> None:
        record(context, one, state, **named)
        if state == "running":
            reach(one.name)

    def make_rest(*given: Any, **named: Any) -> None:
        reach("rest")
        rest(*given, **named)

    copy.make_rest = make_rest
    Timeline.span = span  # type: ignore[method-assign]
    step._record = recorded  # type: ignore[assignment]


if __name__ == "__main__":
    stop_at(sys.argv[1], signal.Signals[sys.argv[2]])
    sys.argv = ["shardctl", *sys.argv[3:]]
    main()
