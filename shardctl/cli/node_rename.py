"""`shardctl node rename`: give a node another name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shardctl.cli import completion, node_report
from shardctl.cli.context import load_topology
from shardctl.cli.options import DryRunOption, LockWaitOption, Report, ReportOption, YesOption

if TYPE_CHECKING:
    from shardctl.nodes.renaming import Renaming


def rename(
    ctx: typer.Context,
    old: Annotated[
        str,
        typer.Argument(metavar="OLD", autocompletion=completion.nodes, help="The present name."),
    ],
    new: Annotated[str, typer.Argument(metavar="NEW", help="The new name.")],
    *,
    keep_alias: Annotated[
        bool,
        typer.Option(
            "--keep-alias",
            help="Leave the alias of the old name to the poolers, until `pgbouncer apply`.",
        ),
    ] = False,
    output: ReportOption = Report.table,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    lock_wait: LockWaitOption = None,
) -> None:
    """Give a node another name, in the poolers, on every node and in the topology.

    No shard moves and no server restarts. The poolers get an alias of the new name before the
    map has that name, and lose the old one at the end. Every node must be reachable, but for
    nodes without shards. If it is killed, the same command finishes it.
    """
    from shardctl.cli.progress import bars
    from shardctl.nodes import renaming

    def carry_out(planned: Renaming) -> None:
        with bars() as progress:
            renaming.carry_out(planned, progress)

    left = "; the poolers keep the old alias until `shardctl pgbouncer apply`" if keep_alias else ""
    node_report.run(
        ctx,
        lambda: renaming.plan(
            load_topology(ctx, lock_wait=lock_wait), old, new, keep_alias=keep_alias
        ),
        carry_out,
        output,
        question=f"Rename node {old} to {new}?",
        unchanged=f"node {new} has this name everywhere",
        done=lambda _: f"node {old} is node {new}{left}",
        dry_run=dry_run,
        yes=yes,
    )
