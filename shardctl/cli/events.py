"""`shardctl events`: the audit trail of all nodes, merged by time."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from shardctl.cli import picture
from shardctl.cli import progress as watching
from shardctl.cli.command import App, Context, load_topology
from shardctl.cli.options import ListingOption, OfNodeOption, moment
from shardctl.cli.output import emit, print_csv, print_json, print_line, print_tsv, say

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shardctl.state.events import Event

app = App()

_HEADER = ("time", "nodes", "by", "command", "result")
_DAY = timedelta(days=1)
_EVERY_S = 2.0


@app.command()
def events(
    ctx: Context,
    *,
    since: Annotated[
        datetime | None,
        typer.Option(
            metavar="<duration|time>",
            parser=moment,
            help="List events from then on: 2h before now, or 2026-01-31T12:00 (UTC); "
            "those of the last day by default.",
        ),
    ] = None,
    node: OfNodeOption = None,
    follow: Annotated[
        bool, typer.Option(help="Then print new events as they come, until Ctrl-C.")
    ] = False,
    output: ListingOption = "table",
) -> None:
    """List what shardctl changed: when, on which nodes, which operator, command, files and result.

    Changes nothing. Merges the tables shardctl.event of all nodes by time; each node writes its own
    clock's time. An event that several nodes have is listed once: a clone has its source's. Exit
    code 3 if a node could not be read.
    """
    from shardctl.state import events as trail
    from shardctl.state import lock
    from shardctl.topology import routes

    topology = load_topology(ctx)
    begin = since or datetime.now(UTC) - _DAY
    nodes = None if node is None else [routes.node(topology, node)]

    purpose = lock.purpose("events")
    read = partial(trail.read, topology, since=begin, purpose=purpose, nodes=nodes)
    if not follow:
        found, errors = read()
        emit(
            output,
            _HEADER,
            map(_row, found),
            {"cluster": topology.cluster, "events": [one.as_json() for one in found]},
            nothing=f"no event since {picture.moment(begin)}",
        )
        for error in errors:
            say(f"shardctl: {error}")
        if errors:
            raise typer.Exit(3)
        return
    if output == "csv":
        print_csv([_HEADER])
    printed: set[tuple[datetime, int, str, str, str]] = set()
    reported: set[str] = set()

    def again() -> bool:
        nonlocal reported
        found, errors = read()
        new = {(e.at, e.id, e.who, e.command, e.result): e for e in found}
        _print((event for key, event in new.items() if key not in printed), output)
        printed.update(new)
        now = {str(error) for error in errors}
        for message in sorted(now - reported):
            say(f"shardctl: {message}")
        reported = now
        sys.stdout.flush()
        return True

    watching.every(_EVERY_S, again)


def _print(found: Iterable[Event], output: str) -> None:
    """Print each event by itself, for a reader that follows."""
    for one in found:
        if output == "json":
            print_json(one.as_json())
        elif output == "table":
            time, nodes, by, command, result = _row(one)
            print_line(f"{time}  {nodes}  {by}  {command}: {result}")
        else:
            (print_csv if output == "csv" else print_tsv)([_row(one)])


def _row(one: Event) -> tuple[str, ...]:
    found = one.as_json()
    return (found["time"], ",".join(one.nodes), one.who, one.command, one.result)
