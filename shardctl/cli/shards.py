"""`shardctl shards`: every shard with its size and its load."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from shardctl.cli import completion, nodes, values
from shardctl.cli.command import command_app
from shardctl.cli.context import load_topology
from shardctl.cli.options import Listing, ListingOption
from shardctl.cli.output import print_csv, print_json, print_table, print_tsv
from shardctl.cli.shards_shown import COLUMNS, Listed, Shown, Sort, ordered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardctl.errors import ShardctlError
    from shardctl.topology.model import Topology

app = command_app(no_args_is_help=True)

_SAMPLE = values.Duration(seconds=1)


@app.callback()
def shards() -> None:
    """List shards with their sizes and loads."""


@app.command("list")
def list_shards(
    ctx: typer.Context,
    *,
    sort: Annotated[
        Sort | None,
        typer.Option("--sort", help="The order: by number, or the largest or oldest first."),
    ] = None,
    node: Annotated[
        list[str] | None,
        typer.Option(
            "--node",
            metavar="NODE",
            autocompletion=completion.nodes,
            help="Only the shards of this node; can be repeated.",
        ),
    ] = None,
    top: Annotated[
        int | None,
        typer.Option("--top", min=1, metavar="N", help="Only the first N; by size by default."),
    ] = None,
    sample: Annotated[
        values.Duration | None,
        typer.Option(
            "--sample",
            metavar="DURATION",
            parser=values.duration(plain="s"),
            help="Count writes and scans for so long; 1s with --sort tps. A plain number is in "
            "seconds.",
        ),
    ] = None,
    oldest: Annotated[
        bool, typer.Option("--oldest", help="Also read the oldest id of every shard.")
    ] = False,
    output: ListingOption = Listing.table,
) -> None:
    """List every shard: node, size, estimated rows, load, last move.

    Asks each node the same few questions, however many shards it has; changes nothing. The nodes'
    own maps decide where a shard is. Unreachable nodes are named, and the other nodes'
    shards listed, with exit code 3.
    """
    from shardctl.state import lock, shard_loads

    topology = load_topology(ctx)
    chosen = nodes.chosen(topology, node)
    order = sort or (Sort.size if top else Sort.shard)
    if sample is None and order is Sort.tps:
        sample = _SAMPLE
    seconds = sample.total_seconds() if sample else None
    purpose = lock.purpose("shards list")
    found = shard_loads.read(topology, purpose=purpose, sample_s=seconds, nodes=chosen)
    problems = list(found.problems)
    rows = [Shown(load) for load in found.loads]
    if order is not Sort.oldest:  # only those that are shown cost a question
        rows = ordered(rows, order)[:top]
    if oldest or order is Sort.oldest:
        rows, unread = _with_oldest(topology, rows, purpose)
        problems += unread
        rows = ordered(rows, order)[:top]
    if rows or not problems:
        _print(Listed(topology.cluster, seconds, rows, problems), output)
    nodes.require_all(problems, answered=bool(rows))


def _with_oldest(
    topology: Topology, rows: Sequence[Shown], purpose: str
) -> tuple[list[Shown], list[ShardctlError]]:
    """Read the oldest ids of these shards."""
    from shardctl.checks import oldest

    ids, problems = oldest.read(topology, [row.load for row in rows], purpose=purpose)
    return [replace(row, oldest=ids.get((row.load.node, row.load.shard))) for row in rows], problems


def _print(listed: Listed, output: Listing) -> None:
    from shardctl.maintenance import folding

    if output is Listing.json:
        print_json(listed.as_json())
    elif output is Listing.tsv:
        print_tsv(map(folding.tsv, listed.cells()))
    elif output is Listing.csv:
        print_csv([COLUMNS, *listed.cells()])
    else:
        print_table(*listed.table())
