"""`shardctl events`: the audit trail of all nodes, merged by time."""

from __future__ import annotations

import sys
from datetime import UTC, datetime  # typer reads the signature when the command is called
from typing import TYPE_CHECKING, Annotated

import typer

from shardctl.cli import completion, nodes, values, watch
from shardctl.cli.command import command_app
from shardctl.cli.context import load_topology
from shardctl.cli.options import Listing, ListingOption
from shardctl.cli.output import print_csv, print_json, print_table, print_tsv, printable, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardctl.errors import ShardctlError
    from shardctl.state.event_trail import Event, Follower

app = command_app()

_LIMIT = 50
_EVERY_S = 1.0
HEADER = ("time", "node", "by", "command", "files", "result")


@app.command()
def events(
    ctx: typer.Context,
    *,
    since: Annotated[
        datetime | None,
        typer.Option(
            "--since",
            metavar="TIME",
            parser=values.moment(),
            help="Only events since then: a duration ago, such as 1h, or a time (UTC without a "
            "zone).",
        ),
    ] = None,
    node: Annotated[
        list[str] | None,
        typer.Option(
            "--node",
            metavar="NODE",
            autocompletion=completion.nodes,
            help="Only what changed this node; can be repeated.",
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            min=1,
            metavar="N",
            help="Only the newest N; 50 by default, or all with --since.",
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with new events until Ctrl-C.")
    ] = False,
    output: ListingOption = Listing.table,
) -> None:
    """Show who changed which node, and how that ended: the newest events of all nodes by time.

    Unreachable nodes are named, and the other nodes' events shown, with exit code 3. With
    --follow it ends by Ctrl-C, with exit code 0.
    """
    from shardctl.state import event_trail, lock

    topology = load_topology(ctx)
    chosen = nodes.chosen(topology, node)
    follower = event_trail.Follower(topology, lock.purpose("events"), chosen)
    most = limit or (event_trail.ALL if since else _LIMIT)
    trail = follower.read(since=since, limit=most)
    if output is Listing.csv:
        print_csv([HEADER])
    if trail.events or not (trail.problems or follow):
        _print(trail.events, output)
    if follow:
        _follow(follower, trail.problems, output)
    else:
        nodes.require_all(trail.problems, answered=follower.answered)


def _follow(follower: Follower, problems: Sequence[ShardctlError], output: Listing) -> None:
    """Print new events until Ctrl-C, and report each time that a node stops answering."""
    reported: set[str] = set()

    def report(problems: Sequence[ShardctlError]) -> None:
        nonlocal reported
        for one in problems:
            if one.message not in reported:
                say(f"shardctl: {one.message}")
        reported = {one.message for one in problems}

    def again() -> bool:
        trail = follower.read()
        _print_lines(trail.events, output)
        sys.stdout.flush()
        report(trail.problems)
        return True

    sys.stdout.flush()
    report(problems)
    watch.every(_EVERY_S, again)


def _print(found: Sequence[Event], output: Listing) -> None:
    if output is not Listing.table:
        _print_lines(found, output)
    elif found:
        print_table(HEADER, [_people(one) for one in found], coloured="result")
    else:
        print("no events")


def _print_lines(found: Sequence[Event], output: Listing) -> None:
    """Print a line for each event."""
    from shardctl.maintenance import folding

    if output is Listing.json:
        for one in found:
            print_json(one.as_json())
    elif output is Listing.tsv:
        print_tsv(folding.tsv(_program(one)) for one in found)
    elif output is Listing.csv:
        print_csv(_program(one) for one in found)
    else:
        for one in found:
            print("  ".join(filter(None, _people(one))))


def _program(one: Event) -> tuple[str, ...]:
    shown = one.as_json()
    files = ",".join(one.files)
    return shown["time"], one.node, one.who, one.command, files, one.result


def _people(one: Event) -> tuple[str, ...]:
    return (
        f"{one.at.astimezone(UTC):%Y-%m-%d %H:%M:%S}",
        one.node,
        *map(printable, (one.who, one.command, ", ".join(one.files), one.result)),
    )
