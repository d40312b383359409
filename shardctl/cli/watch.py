"""`--watch`: the same answer again and again, drawn over the one before on a terminal."""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING

from shardctl.cli.output import console

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import RenderableType


def every(seconds: float, refresh: Callable[[], bool]) -> None:
    """Call `refresh` until it gives False, or Ctrl-C; `seconds` between the begins at least."""
    never = threading.Event()
    try:
        while True:
            began = time.monotonic()
            if not refresh():
                return
            never.wait(max(0.0, began + seconds - time.monotonic()))
    except KeyboardInterrupt:
        return


def in_place(
    seconds: float, look: Callable[[int], tuple[RenderableType, bool]], *, transient: bool = False
) -> None:
    """Draw what `look` gives for a width over the one before, until that is the last one.

    What does not fit the height of the terminal is cut off; with `transient` the last one goes.
    """
    from rich.live import Live

    out = console()
    with Live(
        console=out, auto_refresh=False, vertical_overflow="crop", transient=transient
    ) as live:

        def refresh() -> bool:
            shown, goes_on = look(out.width)
            live.update(shown, refresh=True)
            return goes_on

        every(seconds, refresh)


def on_terminal() -> bool:
    """Tell whether answers can be drawn over each other."""
    return sys.stdout.isatty()
