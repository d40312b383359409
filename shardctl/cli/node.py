"""`shardctl node`: the life of a server in the fleet."""

from __future__ import annotations

from shardctl.cli import node_add, node_drain, node_lost, node_remove, node_rename
from shardctl.cli.command import command_app

app = command_app(
    help="Add a server to the fleet, drain, remove or rename one, declare one lost.",
    no_args_is_help=True,
)
app.command()(node_add.add)
app.command()(node_drain.drain)
app.command()(node_remove.remove)
app.command()(node_rename.rename)
app.command()(node_lost.lost)
