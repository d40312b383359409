"""`shardctl status`: the fleet at a glance."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from shardctl.cli import output as printing
from shardctl.cli import status_picture, status_tables, values
from shardctl.cli import watch as watching
from shardctl.cli.command import command_app
from shardctl.cli.context import load_topology
from shardctl.cli.options import Report, ReportOption, WatchOption
from shardctl.cli.output import print_json, say

if TYPE_CHECKING:
    from rich.console import RenderableType

    from shardctl.checks.status import Status

app = command_app()

_SAMPLE = values.Duration(seconds=1)


@app.command()
def status(
    ctx: typer.Context,
    *,
    output: ReportOption = Report.table,
    watch: WatchOption = None,
    sample: Annotated[
        values.Duration,
        typer.Option(
            "--sample",
            metavar="DURATION",
            parser=values.duration(),
            help="How long to count transactions; 0 to skip.",
        ),
    ] = _SAMPLE,
) -> None:
    """Show the fleet: nodes, replication, poolers, moves, and a picture of the shards' sizes.

    Changes nothing. Lists unreachable nodes and poolers; exit code 1 if a node with shards is one
    of them. With --watch it repeats until Ctrl-C, with exit code 0.
    """
    from shardctl.checks.status import observe
    from shardctl.cli.progress import bars
    from shardctl.errors import ShardctlError
    from shardctl.fanout import Silent

    topology = load_topology(ctx)
    if watch is None:
        with bars() as progress:
            found = observe(topology, sample_s=sample.total_seconds(), progress=progress)
        _print(found, output)
        if status_tables.unserved(found):
            raise typer.Exit(1)
        return

    def look() -> Status:
        nonlocal topology
        try:  # a move writes a new one
            topology = load_topology(ctx)
        except ShardctlError as error:
            say(f"shardctl: {error}; using the previous topology")
        return observe(topology, sample_s=sample.total_seconds(), progress=Silent())

    def draw(width: int) -> tuple[RenderableType, bool]:
        return _drawn(look(), width, watch.total_seconds()), True

    def again() -> bool:
        _print(look(), output)
        return True

    if output is Report.table and watching.on_terminal():
        watching.in_place(watch.total_seconds(), draw)
    else:
        watching.every(watch.total_seconds(), again)


def _drawn(found: Status, width: int, seconds: float) -> RenderableType:
    """Draw all that there is to see, with lines that end where the terminal does."""
    from rich.console import Group
    from rich.text import Text

    lines = [*status_picture.draw(found), "", *status_tables.unreached(found)]
    text = Text("\n".join(lines), no_wrap=True, overflow="crop")
    head = Text(f"{status_tables.title(found)}  (every {seconds:g} s; Ctrl-C ends)")
    return Group(head, *status_tables.tables(found, width), text)


def _print(found: Status, output: Report) -> None:
    """Print the result, and unreachable nodes and poolers on standard error."""
    if output is Report.json:
        print_json(found.as_json())
    else:
        show(found)
    sys.stdout.flush()
    for line in status_tables.unreached(found):
        say(f"shardctl: {line}")


def show(found: Status) -> None:
    """Print the title, the tables and the picture of the shards."""
    from rich.text import Text

    console = printing.console()
    print(status_tables.title(found))
    console.print(*status_tables.tables(found, console.width))
    lines = status_picture.draw(found)
    console.print(Text("\n".join(lines), overflow="fold"))
