"""`shardctl node`: work on one node of the fleet."""

from __future__ import annotations

from typing import Annotated

import typer

from shardctl.cli import completion, options, rebalance
from shardctl.cli.command import Changing, command_app
from shardctl.cli.context import load_topology

app = command_app(help="Empty a node.", no_args_is_help=True)


@app.callback()
def node() -> None:
    """Empty a node."""


@app.command(cls=Changing)
def drain(
    ctx: typer.Context,
    node: Annotated[
        str,
        typer.Argument(metavar="NODE", help="The node.", autocompletion=completion.nodes),
    ],
    *,
    node_weight: rebalance.WeightOption = None,
    max_pause: options.MaxPauseOption = None,
    max_rate: options.MaxRateOption = None,
    max_wal: options.MaxWalOption = None,
    terminate: options.TerminateOption = False,
    ignore_standby: options.IgnoreStandbyOption = False,
) -> None:
    """Move all shards of a node to the other nodes, by size, so that each gets its share.

    It is `rebalance apply --node-weight NODE=0`, which also moves shards between the other nodes
    where one has more than its share; `rebalance status` shows it and `rebalance resume` goes on.
    """
    topology = load_topology(ctx)
    found = rebalance.planned(topology, node_weight=[*(node_weight or ()), f"{node}=0"])
    given = rebalance.options_of(
        topology, max_pause, max_rate, max_wal, terminate=terminate, ignore_standby=ignore_standby
    )
    rebalance.carry_out(ctx, topology, found, given)
