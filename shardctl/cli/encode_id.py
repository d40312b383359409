"""`shardctl encode-id`: the smallest id for a time and shard."""

from __future__ import annotations

from typing import Annotated

import typer

from shardctl.cli.command import command_app
from shardctl.cli.context import topology_if_there
from shardctl.cli.options import Report, ReportOption
from shardctl.cli.output import print_json
from shardctl.errors import UsageError

app = command_app()


@app.command()
def encode_id(
    ctx: typer.Context,
    *,
    time: Annotated[
        str,
        typer.Option("--time", metavar="T", help="ISO 8601; UTC without a time zone."),
    ],
    shard: Annotated[int, typer.Option("--shard", metavar="N", help="The shard's number.")] = 0,
    output: ReportOption = Report.table,
) -> None:
    """Print the smallest id that a shard can have made at or after a time.

    Use it for range scans by time: `WHERE id >= ...`. Without --shard it prints the smallest id of
    any shard. Without a topology it uses the default layout.
    """
    from shardctl.ids import times
    from shardctl.ids.layout import Layout
    from shardctl.topology.keys import ShardNotFound

    try:
        time_ms = times.parse(time)
    except ValueError:
        raise UsageError(
            f"--time: invalid time {time!r}", hint="write it as 2011-09-09T22:28:04.721Z"
        ) from None
    topology = topology_if_there(ctx)
    if topology is not None and not 0 <= shard < topology.shard_count:
        raise ShardNotFound(shard, topology.shard_count)
    layout = Layout.of(topology.id) if topology else Layout()
    number = layout.floor(time_ms, shard)
    if output is Report.json:
        decoded = layout.decode(number)
        print_json({"id": str(number), "time": times.render(decoded.time_ms), "shard": shard})
    else:
        print(number)
