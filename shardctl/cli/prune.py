"""`shardctl prune`: drop retired schemas whose shards are proved to be live on another node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shardctl.cli import changing, moves_report, picture
from shardctl.cli.command import App, Changing
from shardctl.cli.context import load_topology
from shardctl.cli.output import plural, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardctl.fanout import Progress
    from shardctl.moves.prune import Retired

app = App()


@app.command(cls=Changing)
def prune(
    ctx: typer.Context,
    *,
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
    nodes' maps disagree, or the owner does not have the shard, and lists each with its reason. One
    that a session or an object outside uses is kept, too, when it would be dropped (exit code 3).
    """
    from shardctl.moves import prune as pruning
    from shardctl.state import lock

    topology = load_topology(ctx)
    ledger = moves_report.read(topology)
    found = pruning.plan(
        topology,
        ledger,
        accept_unconfirmed=accept_unconfirmed,
        now=now,
        purpose=lock.purpose(pruning.COMMAND),
    )
    chosen = [one for one in found if one.why_not is None]
    counted = _counted(chosen)

    def drop(progress: Progress) -> None:
        try:
            pruning.carry_out(topology, chosen, progress, accept_unconfirmed=accept_unconfirmed)
        except pruning.PruneUnfinished as error:
            say(f"{_counted(error.dropped)} dropped")
            raise

    changing.run(
        ctx,
        pending=chosen,
        header=("node", "schema", "size", "verdict"),
        rows=[
            (o.node, o.schema, picture.size(o.size_bytes), o.why_not or "may be dropped")
            for o in found
        ],
        nothing="nothing to prune: no node has retired schemas",
        plan={
            "retired": [one.as_json() for one in found],
            "reclaimed_bytes": sum(one.size_bytes for one in chosen),
        },
        question=f"Drop {counted}?",
        carry_out=drop,
        done=lambda _: f"done: {counted} dropped; the space is free",
    )


def _counted(schemas: Sequence[Retired]) -> str:
    space = picture.size(sum(one.size_bytes for one in schemas))
    return f"{plural(len(schemas), 'retired schema')} ({space})"
