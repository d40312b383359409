"""`shardctl node`: add a node to the fleet, empty one, remove one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shardctl.cli import options, provision, rebalance
from shardctl.cli.command import App, Changing, Context, load_topology, run_change
from shardctl.cli.options import dangerous
from shardctl.cli.output import say
from shardctl.errors import Incomplete

if TYPE_CHECKING:
    from shardctl.fleet.nodes import Change

app = App()

NodeArgument = Annotated[str, typer.Argument(help="The node.", autocompletion=options.node_names)]


@app.command(cls=Changing)
def add(
    ctx: Context,
    node: Annotated[str, typer.Argument(help="The name of the new node.")],
    *,
    host: Annotated[str, typer.Option(help="The host of its server.")],
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port of its server.")] = 5432,
    more: Annotated[
        str | None,
        typer.Option(
            "--with",
            metavar="<keys>",
            help="More keys of the node in the file, such as 'data_directory: /srv/pg'.",
        ),
    ] = None,
) -> None:
    """Check a new server, write it into the topology file, and make it a member of the cluster.

    The server must run and have no shards. What `init` checks is checked. Comments and format
    of the file stay. Then it does what `init` does for this node and the poolers; `rebalance apply`
    or `move-shards` brings it shards.
    """
    from shardctl.fleet import nodes
    from shardctl.topology import edit

    keys = f"host: {edit.scalar(host)}, port: {port}, shards: none" + (f", {more}" if more else "")
    found = nodes.add(load_topology(ctx), node, f"{{{keys}}}")
    _change(
        ctx,
        found,
        question=f"Add node {node} to {found.before.path}?",
        done=f"done: node {node} is a member of the cluster, without shards; `shardctl rebalance "
        "plan` shows which shards it could get",
    )


@app.command(cls=Changing)
def remove(
    ctx: Context,
    node: NodeArgument,
    *,
    gone: Annotated[bool, dangerous("Confirm that its server is permanently lost.")] = False,
) -> None:
    """Remove an empty node from the topology file and the poolers, after proof that it is empty.

    The file, its own map and the other nodes' maps give it no shards; it has no schema of a shard,
    no retired copy, no unfinished move and none that can be reversed. With --gone its server must
    not answer, and the maps of all other nodes are the proof. Its server and data stay as they are.
    """
    from shardctl.fleet import nodes
    from shardctl.topology import routes

    topology = load_topology(ctx)
    found = nodes.remove(topology, routes.node(topology, node), gone=gone)
    _change(
        ctx,
        found,
        question=f"Remove node {node} from {topology.path}?",
        done=f"done: node {node} is removed; to add it again: {found.again}",
    )


def _change(ctx: Context, found: Change, *, question: str, done: str) -> None:
    """Show what happens to the file, the node and the poolers, ask, and carry it out."""
    from shardctl.fleet import nodes

    line = (found.node.name, found.command.split()[-1], "node", str(found.before.path), "")
    run_change(
        ctx,
        pending=True,
        header=provision.HEADER,
        rows=[line, *provision.rows(found.init.changes())],
        plan=found.as_json(),
        question=question,
        carry_out=lambda progress: nodes.carry_out(found, progress, say),
        done=lambda _: done,
        notes=found.notes,
        left_out=found.init.left_out,
    )


@app.command(cls=rebalance.Draining)
def drain(
    ctx: Context,
    node: NodeArgument,
) -> None:
    """Move all shards of a node to the other nodes, by size, so that each gets its share.

    It is `rebalance apply --node-weight NODE=0`, which also moves shards between the other nodes
    where one has more than its share; `rebalance status` shows it and `rebalance resume` goes on.
    """
    from shardctl.topology import ranges, routes

    topology = load_topology(ctx)
    found = rebalance.planned(ctx, topology, node)
    moved = {shard for move in found.moves if move.source == node for shard in move.shards}
    left_out = []
    if kept := [shard for shard in routes.node(topology, node).shards if shard not in moved]:
        left_out.append(
            Incomplete(
                "drain_incomplete",
                f"node {node} keeps shards {ranges.of(kept)}: no other node has room for them",
                hint="free space on other nodes or add a node, then run the command again",
            )
        )
    rebalance.carry_out(ctx, topology, found, left_out=left_out)
