"""`shardctl read-only`: refuse writes to shards, and accept them again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shardctl.cli import options, picture
from shardctl.cli.command import App, Changing, run_change
from shardctl.cli.context import load_topology
from shardctl.cli.options import Duration, duration_option
from shardctl.cli.output import plural
from shardctl.errors import UsageError
from shardctl.topology import ranges

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardctl.access.read_only import Wanted
    from shardctl.topology.model import ShardId, Topology

app = App()

ShardsArgument = Annotated[str | None, typer.Argument(help="For example 2-3,17; or use --node.")]
NodeOption = Annotated[
    str | None, typer.Option(autocompletion=options.node_names, help="All shards of this node.")
]
WAIT = Duration(seconds=30)
WaitOption = Annotated[
    Duration, duration_option("How long to wait for sessions that use a table, for example 30s.")
]


@app.command(cls=Changing)
def on(
    ctx: typer.Context,
    shards: ShardsArgument = None,
    *,
    node: NodeOption = None,
    wait: WaitOption = WAIT,
) -> None:
    """Refuse writes to the tables of shards for all roles, owners and superusers too.

    Writers get SQLSTATE 25006 with the shard's number; reads continue. When the command returns,
    all earlier writes have ended. It refuses neither DDL nor sequences. It lasts until
    `read-only off`, also after a restart of the server or a move of the shard.
    """
    from shardctl.access.read_only import Wanted

    _run(ctx, Wanted.on, shards, node, wait)


@app.command(cls=Changing)
def off(
    ctx: typer.Context,
    shards: ShardsArgument = None,
    *,
    node: NodeOption = None,
    wait: WaitOption = WAIT,
) -> None:
    """Accept writes to shards again, and restore their schemas.

    The tables accept writes at once; removing the triggers then waits for readers.
    """
    from shardctl.access.read_only import Wanted

    _run(ctx, Wanted.off, shards, node, wait)


def _run(
    ctx: typer.Context,
    wanted: Wanted,
    shards: str | None,
    node: str | None,
    wait: Duration,
) -> None:
    """Plan, show, ask, carry out, report."""
    from shardctl.access import read_only_fleet as fleet
    from shardctl.state import lock

    topology = load_topology(ctx)
    chosen = _shards(topology, shards, node)
    plans = fleet.plan(topology, chosen, wanted, purpose=lock.purpose(wanted.command))
    changed = [one.node for one in plans if one.todo]
    lock.require_all_free(topology, changed, command=wanted.command)
    count = sum(len(one.todo) for one in plans)
    where = f"{plural(count, 'shard')} on {plural(len(changed), 'node')}"
    verb, are = ("Refuse", "already") if wanted == "on" else ("Accept", "not")
    run_change(
        ctx,
        pending=count,
        header=("node", "read-only", "shards", "tables", "unchanged"),
        rows=[
            (
                one.node,
                wanted.value,
                picture.shorten(ranges.of(one.todo)),
                f"{one.tables:,}",
                picture.shorten(ranges.of(one.unchanged)),
            )
            for one in plans
            if count
        ],
        nothing=f"nothing to do: shards {picture.shorten(ranges.of(chosen))} are {are} read-only",
        plan={
            "cluster": topology.cluster,
            "read_only": wanted.value,
            "nodes": [one.as_json() for one in plans],
        },
        question=f"{verb} writes to {where}?",
        carry_out=lambda progress: fleet.carry_out(
            topology, plans, wanted, wait_s=wait.total_seconds(), progress=progress
        ),
        done=lambda _: f"done: {where} {verb.lower()} writes",
    )


def _shards(topology: Topology, text: str | None, name: str | None) -> Sequence[ShardId]:
    """Return the chosen shards: a list, or all of a node; raises UsageError."""
    from shardctl.topology import routes

    if (text is None) == (name is None):
        raise UsageError("expected SHARDS or --node", hint="give one of them")
    if text is not None:
        return routes.listed(topology, text)
    return routes.node(topology, name or "").shards
