"""Progress of long work on standard error, drawn or as lines now and then; and `--watch`."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from typing import TYPE_CHECKING, TypeVar

from shardctl.cli import picture
from shardctl.cli.output import console, styled
from shardctl.meter import Meters, sentences
from shardctl.printable import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardctl.fanout import Progress


T = TypeVar("T")
_FIRST_S, _EVERY_S = 2.0, 5.0
"""Without a terminal: before the first line, and between two."""
_KEYS = 4
"""So many keys are named in a line."""
_BAR = 20


@contextlib.contextmanager
def bars() -> Iterator[Progress]:
    """Show for each key (a node) its phase, what is done, and its pace or what it waits for.

    Without a terminal it prints a line after two seconds, and every five seconds from then on;
    nothing for work that ends sooner. Each line names the keys whose work goes on.
    """
    out = console(stderr=True)
    if not sys.stderr.isatty() or out.is_dumb_terminal:
        with lines() as shown:
            yield shown
        return
    from rich.live import Live
    from rich.text import Text

    meters = Meters()

    def drawn() -> Text:
        lines = (
            f"{picture.bar(one.done, one.total, width=_BAR):{_BAR}}  {picture.line(key, one)}"
            for key, one in meters.read().items()
        )
        return Text("\n".join(map(one_line, lines)), no_wrap=True, overflow="ellipsis")

    # Results go to standard output, wherever that leads.
    with Live(
        get_renderable=drawn,
        console=out,
        refresh_per_second=4,
        transient=True,
        redirect_stdout=False,
    ):
        yield meters


@contextlib.contextmanager
def lines() -> Iterator[Progress]:
    """Print lines from a thread, so that work that is stalled is shown, too."""
    meters, ended = Meters(), threading.Event()

    def tell() -> None:
        pause_s = _FIRST_S
        while not ended.wait(pause_s):
            if at_work := [picture.line(key, one) for key, one in meters.at_work().items()]:
                line = f"progress: {sentences(at_work, most=_KEYS)}"
                print(one_line(line), file=sys.stderr, flush=True)
                pause_s = _EVERY_S

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield meters
    finally:
        ended.set()
        thread.join()


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


def watch(
    seconds: float,
    look: Callable[[], tuple[T, bool]],
    draw: Callable[[T, int], str],
    show: Callable[[T], None],
    output: str,
) -> None:
    """Look again and again, until `look` says that this was the last time, or Ctrl-C.

    On a terminal, what `draw` gives for its width is drawn over the one before; what does not fit
    is cut off until the end. Elsewhere, `show` prints each.
    """
    from rich.live import Live

    out = console()
    drawn = output == "table" and sys.stdout.isatty()
    live = Live(console=out, auto_refresh=False, vertical_overflow="crop")

    def refresh() -> bool:
        found, goes_on = look()
        if drawn:
            live.update(styled(draw(found, out.width)), refresh=True)
        else:
            show(found)
        return goes_on

    with live if drawn else contextlib.nullcontext():
        every(seconds, refresh)
