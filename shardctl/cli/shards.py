"""`shardctl shards`: how large and how busy every shard is."""

from __future__ import annotations

from datetime import UTC
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from shardctl.cli import picture, values
from shardctl.cli.command import App
from shardctl.cli.context import load_topology
from shardctl.cli.options import Listing, ListingOption, OfNodeOption, SampleOption
from shardctl.cli.output import emit, say

if TYPE_CHECKING:
    from shardctl.checks.loads import ShardLoad

app = App()

_HEADER = ("shard", "schema", "node", "size", "rows", "writes/s", "scans/s", "last move")
_FIELDS = (
    "shard", "schema", "node", "size_bytes", "rows_estimate", "writes_per_s", "scans_per_s",
    "last_move",
)  # fmt: skip


class Sort(StrEnum):
    """Orders of the list."""

    shard = "shard"
    size = "size"
    rows = "rows"
    tps = "tps"
    node = "node"


@app.callback()
def shards() -> None:
    """List the shards by size and load."""


@app.command("list")
def list_shards(
    ctx: typer.Context,
    *,
    sort: Annotated[
        Sort,
        typer.Option(
            "--sort", help="The order; tps is writes/s and scans/s together, the most first."
        ),
    ] = Sort.shard,
    node: OfNodeOption = None,
    top: Annotated[
        int | None, typer.Option("--top", min=1, metavar="N", help="List only the first ones.")
    ] = None,
    sample: SampleOption = values.SAMPLE,
    output: ListingOption = Listing.table,
) -> None:
    """List every shard with its node, size, rows and load.

    Changes nothing. Load is counted during --sample: rows inserted, updated and deleted a second,
    and scans of tables and indexes a second; PostgreSQL does not count transactions by schema. Rows
    are the estimate of the last ANALYZE. Exit code 3 if a node could not be read: its shards have
    no figures.
    """
    from shardctl.checks import loads
    from shardctl.state import lock
    from shardctl.topology import ranges, routes

    topology = load_topology(ctx)
    found = loads.measure(
        topology,
        sample_s=sample.total_seconds(),
        purpose=lock.purpose("shards list"),
        nodes=None if node is None else [routes.node(topology, node)],
    )
    chosen = sorted(found.shards, key=lambda one: _key(one, sort))[:top]
    emit(
        output,
        _HEADER if output is Listing.table else _FIELDS,
        map(_shown if output is Listing.table else _fields, chosen),
        {
            "cluster": topology.cluster,
            # A quarter of a second for 8,192 shards.
            "shards": [one.as_json() for one in chosen] if output is Listing.json else (),
        },
        nothing="the node owns no shards",
    )
    if found.missing:
        say(
            f"shardctl: shards {ranges.of(found.missing)} are missing on the nodes that "
            f"{topology.path.name} gives them to: run `shardctl verify --check map`"
        )
    for error in found.errors.values():
        say(f"shardctl: {error}")
    if found.errors:
        raise typer.Exit(3)


def _key(one: ShardLoad, sort: Sort) -> tuple[float | str, int]:
    """Order by a figure, the largest first and unknown ones last; equal ones by number."""
    if sort is Sort.node:
        return one.node, one.shard
    figures = {
        Sort.size: one.size_bytes,
        Sort.rows: one.rows_estimate,
        Sort.tps: one.operations_per_s,
    }
    figure = figures.get(sort)
    return (0 if sort is Sort.shard else 1 if figure is None else -figure), one.shard


def _shown(one: ShardLoad) -> tuple[str, ...]:
    rates = (
        "-" if rate is None else f"{rate:,.1f}" for rate in (one.writes_per_s, one.scans_per_s)
    )
    size, rows = picture.size(one.size_bytes), picture.number(one.rows_estimate)
    moved = "-" if one.last_move is None else f"{one.last_move.astimezone(UTC):%Y-%m-%d %H:%M}"
    return f"{one.shard}", one.schema, one.node, size, rows, *rates, moved


def _fields(one: ShardLoad) -> tuple[str | None, ...]:
    return tuple(None if value is None else str(value) for value in one.as_json().values())
