"""`shardctl node add`: check a new server, and make it a node of the fleet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shardctl.cli import node_report
from shardctl.cli.context import load_topology
from shardctl.cli.options import DryRunOption, LockWaitOption, Report, ReportOption, YesOption
from shardctl.cli.output import say

if TYPE_CHECKING:
    from shardctl.nodes.addition import Addition


def add(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the new node.")],
    *,
    host: Annotated[str, typer.Option("--host", metavar="HOST", help="The host of its server.")],
    port: Annotated[
        int, typer.Option("--port", metavar="PORT", help="The port of its server.")
    ] = 5432,
    data_directory: Annotated[
        str | None,
        typer.Option(
            "--data-directory",
            metavar="DIRECTORY",
            help="The server's data directory; relative to the topology file.",
        ),
    ] = None,
    bin_directory: Annotated[
        str | None,
        typer.Option(
            "--bin-directory", metavar="DIRECTORY", help="The directory of PostgreSQL's programs."
        ),
    ] = None,
    os_user: Annotated[
        str | None,
        typer.Option("--os-user", metavar="USER", help="The user who runs the server."),
    ] = None,
    pooler_host: Annotated[
        str | None,
        typer.Option("--pooler-host", metavar="HOST", help="The host as the poolers see it."),
    ] = None,
    keys: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Another key of the node in the topology: settings.NAME, ssh.KEY or control.KEY.",
        ),
    ] = None,
    for_clone: Annotated[
        bool,
        typer.Option(
            "--for-clone", help="The server does not run so far: a move will clone onto it."
        ),
    ] = False,
    accept_unfit: Annotated[
        bool,
        typer.Option(
            "--accept-unfit", help="Add a server from or to which moves would be refused."
        ),
    ] = False,
    output: ReportOption = Report.table,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    lock_wait: LockWaitOption = None,
) -> None:
    """Check a new server, write its line into the topology, and make it a running member.

    It checks the version, that the server has no shards and is not a node already, the settings
    that moves need, the locale, the clock and the logins for replication between the server and
    the nodes. Then it does for the new node what `init` does: the database, the schema
    `shardctl`, the map, and the aliases of the poolers. Comments and order of the file stay.
    If it is killed, the same command finishes it.
    """
    from shardctl.cli.progress import bars
    from shardctl.nodes import addition, line

    given = {
        "host": host,
        "port": str(port),
        "data_directory": data_directory,
        "bin_directory": bin_directory,
        "os_user": os_user,
        "pooler_host": pooler_host,
    }

    def make() -> Addition:
        values = line.values(given, keys or ())
        topology = load_topology(ctx, lock_wait=lock_wait)
        planned = addition.plan(
            topology, name, values, for_clone=for_clone, accept_unfit=accept_unfit
        )
        for error in planned.unfit:
            say(f"note: accepted: {error.message}")
        return planned

    def carry_out(planned: Addition) -> None:
        with bars() as progress:
            addition.carry_out(planned, progress, say)

    move = f"shardctl move-shards SHARDS --to {name}"
    node_report.run(
        ctx,
        make,
        carry_out,
        output,
        question=f"Add node {name}?",
        unchanged=f"node {name} is in the topology"
        + ("" if for_clone else " and a member of the fleet"),
        done=lambda _: (
            f"node {name} is in the topology and waits for a clone; next: `{move} --method clone`"
            if for_clone
            else f"node {name} is a member of the fleet; next: `{move}`"
        ),
        dry_run=dry_run,
        yes=yes,
    )
