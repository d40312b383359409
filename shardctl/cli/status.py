"""`shardctl status`: the fleet at a glance."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from typing import TYPE_CHECKING, Annotated

import typer

from shardctl.cli import status_picture, status_tables, values
from shardctl.cli.command import command_app
from shardctl.cli.context import load_topology
from shardctl.cli.options import Report, ReportOption
from shardctl.cli.output import always_json, print_json, say

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardctl.checks.status import Status

app = command_app()

_SAMPLE = values.Duration(seconds=1)


@app.command()
def status(
    ctx: typer.Context,
    *,
    output: ReportOption = Report.table,
    watch: Annotated[
        values.Duration | None,
        typer.Option(
            "--watch",
            metavar="DURATION",
            parser=values.duration(plain="s", least=values.Duration(milliseconds=100)),
            help="Look again and again; a plain number is in seconds.",
        ),
    ] = None,
    sample: Annotated[
        values.Duration,
        typer.Option(
            "--sample",
            metavar="DURATION",
            parser=values.duration(plain="s"),
            help="How long to count transactions; 0: do not. A plain number is in seconds.",
        ),
    ] = _SAMPLE,
) -> None:
    """Show the fleet: nodes, replication, poolers, moves, and a picture of the shards' sizes.

    Changes nothing. What cannot be reached is shown as such, and the exit code is
    0 all the same. With --watch it goes on until Ctrl-C, which is exit code 0 too.
    """
    from shardctl.checks.status import observe
    from shardctl.cli.progress import bars
    from shardctl.errors import ShardctlError
    from shardctl.fanout import Silent

    with always_json(output):
        topology = load_topology(ctx)
    if watch is None:
        with bars() as progress:
            found = observe(topology, sample_s=sample.total_seconds(), progress=progress)
        _print(found, output)
        return

    def look() -> Status:
        nonlocal topology
        try:  # a move writes a new one
            topology = load_topology(ctx)
        except ShardctlError as error:
            say(f"shardctl: {error}; going by what it said before")
        return observe(topology, sample_s=sample.total_seconds(), progress=Silent())

    try:
        if output is Report.table and sys.stdout.isatty():
            _watch_in_place(look, watch.total_seconds())
        else:
            _every(watch.total_seconds(), lambda: _print(look(), output))
    except KeyboardInterrupt:
        return


def _every(seconds: float, refresh: Callable[[], None]) -> None:
    """Call `refresh` for ever, with `seconds` between the begins, or one after the other."""
    never = threading.Event()
    while True:
        began = time.monotonic()
        refresh()
        never.wait(max(0.0, began + seconds - time.monotonic()))


def _watch_in_place(look: Callable[[], Status], seconds: float) -> None:
    """Draw each refresh over the one before; what does not fit the terminal is cut off."""
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    console = Console()
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:

        def refresh() -> None:
            found = look()
            lines = [
                *status_picture.draw(found, console.width),
                "",
                *status_tables.unreached(found),
            ]
            text = Text("\n".join(lines), no_wrap=True, overflow="crop")
            head = Text(f"{status_tables.title(found)}  (every {seconds:g} s; Ctrl-C ends)")
            live.update(Group(head, *status_tables.tables(found), text), refresh=True)

        _every(seconds, refresh)


def _print(found: Status, output: Report) -> None:
    """Print the whole result, and on standard error what could not be reached."""
    if output is Report.json:
        print_json(found.as_json())
    else:
        show(found)
    sys.stdout.flush()
    for line in status_tables.unreached(found):
        say(f"shardctl: {line}")


def show(found: Status) -> None:
    """Print the title, the tables and the picture of the shards."""
    from rich.console import Console

    print(status_tables.title(found))
    # Where nobody looks at a terminal, lines are never folded.
    Console(width=None if sys.stdout.isatty() else 10_000).print(*status_tables.tables(found))
    print("\n".join(status_picture.draw(found, shutil.get_terminal_size().columns)))
