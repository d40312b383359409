"""`shardctl demo`: the whole story on a throw-away sandbox."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shardctl.cli.command import command_app
from shardctl.cli.output import print_table, say

if TYPE_CHECKING:
    from shardctl.cli.context import Settings
    from shardctl.topology.model import Topology

app = command_app()


@app.command()
def demo(
    ctx: typer.Context,
    *,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the servers running, and show how to connect.")
    ] = False,
) -> None:
    """Show the whole story on a throw-away fleet of real local servers.

    Starts PostgreSQL and PgBouncer in a temporary directory, and makes them a fleet from the
    example's topology.yaml. Writes rows into every shard through PgBouncer, decodes an id and
    routes it back to its row. Then, under load, moves shards 2 and 3 to a new node, 6 and 7 to
    another, and streams shard 1 to a node that serves already. Compares every row, verifies and
    prunes. Without PgBouncer, clients connect to the nodes directly.
    """
    from shardctl.checks.status import observe
    from shardctl.cli import log, status
    from shardctl.cli import verify as verification
    from shardctl.cli.progress import bars
    from shardctl.demo.tour import Tour, verify
    from shardctl.sandbox import poolers

    settings: Settings = ctx.obj
    log.open_log(verbose=settings.verbose)
    if not poolers.available():
        say(f"note: {poolers.WITHOUT} it")
    with bars() as progress, Tour(progress, keep=keep) as tour:
        steps = list(tour.run())
        report = verify(tour.topology, progress)
        now = observe(tour.topology, sample_s=0, progress=progress)
    print_table(
        ("step", "result", "seconds"), [(s.did, s.result, f"{s.seconds:.2f}") for s in steps]
    )
    print("shardctl verify --deep")
    verification.show(report)
    print("\nshardctl status")
    status.show(now)
    if keep:
        _show_how_to_connect(tour.topology)
    else:
        say("stopped the servers and removed their directory; run it with --keep to keep them")


def _show_how_to_connect(topology: Topology) -> None:
    from shardctl.topology import routes

    database = topology.database
    route = routes.of_shard(topology, 0)
    if route.poolers:
        pooler, alias = route.poolers[0]
        login = f"-h {pooler.host} -p {pooler.port} -U {database.app_roles[0]} {alias}"
        table = "photos_by_user"
    else:
        login = f"-h {route.node.host} -p {route.node.port} -U {database.user} {database.name}"
        table = f"{route.schema}.photos_by_user"
    say(f"""
The servers are running. Try:
  export SHARDCTL_TOPOLOGY={topology.path}
  shardctl sandbox status
  shardctl route 31341
  psql {login} -c 'TABLE {table} LIMIT 5'
Stop and delete them:
  shardctl sandbox down --delete --yes && rm -r {topology.path.parent}""")
