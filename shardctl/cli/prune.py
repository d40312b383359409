"""`shardctl prune`: drop retired schemas whose shards are proved to be live on another node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shardctl.cli import picture
from shardctl.cli.command import command_app
from shardctl.cli.context import load_topology, note_changes
from shardctl.cli.options import DryRunOption, LockWaitOption, Report, ReportOption, YesOption
from shardctl.cli.output import confirm, plural, print_at_end, print_table, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardctl.moves.ledger import Ledger
    from shardctl.moves.prune_drop import Retired

app = command_app()


@app.command()
def prune(
    ctx: typer.Context,
    *,
    output: ReportOption = Report.table,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    lock_wait: LockWaitOption = None,
    now: Annotated[
        bool, typer.Option("--now", help="Ignore the retention time (`retain`).")
    ] = False,
    accept_unconfirmed: Annotated[
        bool,
        typer.Option(
            "--accept-unconfirmed", help="Include moves whose rows could not be compared."
        ),
    ] = False,
) -> None:
    """Drop the retired schemas of closed moves, after proof that their rows are live elsewhere.

    It keeps a schema if its move is not closed or was not compared, `retain` has not passed, the
    nodes' maps disagree, the owner does not have the shard, or a session or object uses it. It
    lists each with its reason.
    """
    from shardctl.cli.progress import bars
    from shardctl.moves import prune as pruning
    from shardctl.moves import service
    from shardctl.state import lock

    topology = load_topology(ctx, lock_wait=lock_wait)
    ledger = service.read(topology)
    found = pruning.plan(
        topology,
        ledger,
        accept_unconfirmed=accept_unconfirmed,
        now=now,
        purpose=lock.purpose(pruning.COMMAND),
    )
    _show(found, ledger, output)
    chosen = [one for one in found if one.why_not is None]
    note_changes(ctx, chosen)
    if dry_run or not chosen:
        return
    confirm(f"Drop {_counted(chosen)}?", yes=yes)
    try:
        with bars() as progress:
            pruning.carry_out(topology, chosen, progress, accept_unconfirmed=accept_unconfirmed)
    except pruning.PruneUnfinished as error:
        say(f"{_counted(error.dropped)} dropped")
        raise
    say(f"done: {_counted(chosen)} dropped; the space is free")


def _counted(schemas: Sequence[Retired]) -> str:
    space = picture.size(sum(one.size_bytes for one in schemas))
    return f"{plural(len(schemas), 'retired schema')} ({space})"


def _show(found: list[Retired], ledger: Ledger, output: Report) -> None:
    for node, reason in ledger.unread:
        say(f"shardctl: node {node}: cannot read its journal: {reason}")
    if output is Report.json:
        free = sum(one.size_bytes for one in found if one.why_not is None)
        retired = [one.as_json() for one in found]
        print_at_end({"format": 1, "retired": retired, "reclaimed_bytes": free})
    elif not found:
        print("nothing to prune: no node has retired schemas")
    else:
        print_table(
            ("node", "schema", "size", "verdict"),
            [
                (o.node, o.schema, picture.size(o.size_bytes), o.why_not or "may be dropped")
                for o in found
            ],
        )
