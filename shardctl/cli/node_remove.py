"""`shardctl node remove`: take an empty node out of the fleet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shardctl.cli import completion, node_report
from shardctl.cli.context import load_topology
from shardctl.cli.options import DryRunOption, LockWaitOption, Report, ReportOption, YesOption
from shardctl.cli.output import say

if TYPE_CHECKING:
    from shardctl.nodes.removal import Removal


def remove(
    ctx: typer.Context,
    name: Annotated[
        str,
        typer.Argument(metavar="NODE", autocompletion=completion.nodes, help="The empty node."),
    ],
    *,
    finish_reverse: Annotated[
        bool,
        typer.Option(
            "--finish-reverse",
            help="Give up reversing earlier moves from or to the node, as `moves finish` does.",
        ),
    ] = False,
    prune: Annotated[
        bool,
        typer.Option(
            "--prune", help="Drop the retired copies on the node now, as `prune --now` does."
        ),
    ] = False,
    lost: Annotated[
        bool,
        typer.Option(
            "--lost",
            help="Confirm that the server is destroyed, or never ran: it is not asked.",
        ),
    ] = False,
    output: ReportOption = Report.table,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    lock_wait: LockWaitOption = None,
) -> None:
    """Take an empty node out of poolers, databases and topology, after proof that it is empty.

    The proof: no node's map gives it a shard; no schema of a shard and no retired copy is there;
    no unfinished move and no move that can be reversed names it; moves have left nothing there.
    The server keeps running with what else it has, and the command prints how to add it back.
    If it is killed, the same command finishes it.
    """
    from shardctl.cli.progress import bars
    from shardctl.nodes import removal
    from shardctl.nodes.removal_proof import Allowed

    allowed = Allowed(finish_reverse=finish_reverse, prune=prune, lost=lost)

    def carry_out(planned: Removal) -> None:
        with bars() as progress:
            removal.carry_out(planned, progress, say)

    node_report.run(
        ctx,
        lambda: removal.plan(load_topology(ctx, lock_wait=lock_wait), name, allowed),
        carry_out,
        output,
        question=f"Remove node {name}?",
        unchanged=f"node {name} is not in the topology",
        done=lambda planned: f"node {name} is removed; to add it back: `{planned.again}`",
        dry_run=dry_run,
        yes=yes,
    )
