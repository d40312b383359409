"""`shardctl node drain`: move every shard of a node to the others, and give it no more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shardctl.cli import completion
from shardctl.cli import rebalance_options as given
from shardctl.cli.context import load_topology, note_changes
from shardctl.cli.options import (
    DryRunOption,
    FinishReverseOption,
    IgnoreStandbyOption,
    LockWaitOption,
    MaxPauseOption,
    MaxWalOption,
    Report,
    ReportOption,
    TerminateOption,
    YesOption,
)
from shardctl.cli.output import confirm, print_json, say

if TYPE_CHECKING:
    from shardctl.topology.model import Topology

COMMAND = "node drain"


def drain(
    ctx: typer.Context,
    node: Annotated[
        str,
        typer.Argument(metavar="NODE", autocompletion=completion.nodes, help="The node to empty."),
    ],
    *,
    cancel: Annotated[
        bool,
        typer.Option("--cancel", help="Let the node have shards again; those that left stay away."),
    ] = False,
    output: ReportOption = Report.table,
    node_room: given.RoomOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    max_rate: given.MaxRateOption = None,
    max_pause: MaxPauseOption = None,
    retain: given.RetainOption = None,
    max_wal: MaxWalOption = None,
    finish_reverse: FinishReverseOption = False,
    lock_wait: LockWaitOption = None,
    terminate: TerminateOption = False,
    ignore_standby: IgnoreStandbyOption = False,
) -> None:
    """Move every shard of a node to the others, and give it no shards from then on.

    The moves are those of a rebalance: `rebalance status`, `pause` and `resume` are for them, too.
    Until --cancel, `rebalance` gives the node no shards; `status` shows that it is drained. A shard
    that no other node has room for is named, and stays.
    """
    from shardctl.balance import draining, look, plans
    from shardctl.cli.rebalance import carried_out, prepared

    topology = load_topology(ctx, lock_wait=lock_wait)
    if cancel:
        _cancel(ctx, topology, node, output, dry_run=dry_run, yes=yes)
        return
    options = given.of_moves(
        topology,
        max_rate=max_rate,
        max_pause=max_pause,
        retain=retain,
        max_wal=max_wal,
        terminate=terminate,
        ignore_standby=ignore_standby,
        finish_reverse=finish_reverse,
    )
    made, known = plans.drain(
        topology, options, node, by=look.By.size, rooms=given.rooms(node_room)
    )
    moves = prepared(topology, made, known, options, output)
    note_changes(ctx, moves or node not in known.drained)
    if dry_run:
        return
    if moves or node not in known.drained:
        confirm(f"Drain node {node}?", yes=yes)
        carried_out(
            topology,
            made,
            options,
            command=COMMAND,
            on_startable=lambda now: draining.begin(topology, node, now, command=COMMAND),
        )
    draining.require_drained(made)
    say(f"node {node} is drained: it has no shards, and gets none until --cancel")


def _cancel(
    ctx: typer.Context, topology: Topology, node: str, output: Report, *, dry_run: bool, yes: bool
) -> None:
    from shardctl.balance import draining

    known = draining.require_cancellable(topology, node, command=COMMAND)
    note_changes(ctx, known)
    if output is Report.json:
        print_json({"format": 1, "node": node, "drained": dry_run})
    if dry_run:
        say(f"node {node} would have shards again")
        return
    confirm(f"Let node {node} have shards again?", yes=yes)
    draining.cancel(topology, node, known, notice=say, command=COMMAND)
    say(f"node {node} can have shards again: `shardctl rebalance plan` shows which")
