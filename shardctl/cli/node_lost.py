"""`shardctl node lost`: give the shards of a destroyed node another owner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shardctl.cli import completion, node_report, picture
from shardctl.cli.context import load_topology
from shardctl.cli.options import DryRunOption, LockWaitOption, Report, ReportOption, YesOption
from shardctl.cli.output import say

if TYPE_CHECKING:
    from shardctl.nodes.loss import Loss


def lost(
    ctx: typer.Context,
    name: Annotated[
        str,
        typer.Argument(metavar="NODE", autocompletion=completion.nodes, help="The destroyed node."),
    ],
    *,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="NODE",
            autocompletion=completion.nodes,
            help="The node that gets its shards.",
        ),
    ],
    adopt: Annotated[
        bool,
        typer.Option(
            "--adopt",
            help="Take over the schemas that you have restored there, as having all migrations.",
        ),
    ] = False,
    output: ReportOption = Report.table,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    lock_wait: LockWaitOption = None,
) -> None:
    """Declare that a node and its data are permanently lost, and give its shards to another node.

    Shards that you have restored on that node are adopted, all others are created there empty:
    what the lost node had of them is given up. Refused while a server answers at its address.
    Prefer a standby or a backup of the whole server. Then `node remove --lost` removes the node.
    """
    from shardctl.cli.progress import bars
    from shardctl.nodes import loss

    def carry_out(planned: Loss) -> None:
        with bars() as progress:
            loss.carry_out(planned, progress, say)

    def make() -> Loss:
        planned = loss.plan(load_topology(ctx, lock_wait=lock_wait), name, to, adopt=adopt)
        empty = [
            shard
            for change in planned.changes()
            if (change.action, change.kind) == ("create", "schema")
            for shard in change.shards
        ]
        if empty:
            from shardctl.topology import ranges

            listed = picture.shorten(ranges.of(empty))
            say(f"note: shards {listed} are created empty: their rows are given up")
        return planned

    node_report.run(
        ctx,
        make,
        carry_out,
        output,
        question=f"Give up node {name}, and give its shards to node {to}?",
        unchanged=f"node {name} owns no shards; next: `shardctl node remove {name} --lost`",
        done=lambda _: (
            f"node {to} owns the shards of node {name}; next: `shardctl node remove {name} --lost`"
        ),
        dry_run=dry_run,
        yes=yes,
    )
